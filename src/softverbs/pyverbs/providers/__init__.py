"""What pyverbs has for single makers of devices."""
