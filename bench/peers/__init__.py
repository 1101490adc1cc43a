"""What Jobmill is measured against: peers in the configuration that their own docs recommend, and the bare database."""
