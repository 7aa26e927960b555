"""`train`: what ``latelier train`` does, as a function."""
