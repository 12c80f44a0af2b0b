"""Pictures: bytes to RGB, RGB to patches, and the tower that turns patches into embeddings."""
