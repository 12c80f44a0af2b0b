"""The tests of the chat page; a package, so that one browser is theirs together and ends with them."""
