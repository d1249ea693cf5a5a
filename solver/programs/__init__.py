"""The mathematics: the programs of shares and of the mix, and the search before and after them."""
