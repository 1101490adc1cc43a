"""What several stores share, written once."""
