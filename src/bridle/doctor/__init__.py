"""What works on this machine: its programs, and real agents played through scenarios and faults."""
