"""Shares of a language model."""
