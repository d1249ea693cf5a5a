"""What every other room uses: the array type, and what memory is free."""
