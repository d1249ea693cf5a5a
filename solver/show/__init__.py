"""What a person reads: tables, pictures, advice."""
