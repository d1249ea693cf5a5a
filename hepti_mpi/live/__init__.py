"""A plan that changes while it runs: measuring, deciding, changing over."""
