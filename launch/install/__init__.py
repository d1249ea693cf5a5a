"""The same environment on every board, over ssh: wheels fetched here, pushed, installed without a network."""
