"""What every other room uses: starting programs, tables, curves."""
