"""The worker: the loops that claim, run and settle jobs, one file each. The core decides, the worker acts."""
