"""What all packages share and no other room knows: errors, the clock, threads, command lines, words for people."""
