"""What pip installs."""
