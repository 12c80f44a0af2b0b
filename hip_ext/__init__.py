"""Native kernels. Empty until the op table exists (see ARCHITECTURE.md)."""
