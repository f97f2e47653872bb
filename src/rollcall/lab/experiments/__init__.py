"""The experiments. Each is one file that can be read and run by itself."""
