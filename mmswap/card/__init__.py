"""What a card is, how much of it is truly free."""
