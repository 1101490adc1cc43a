"""Moving in from other systems: Celery's interface on Jobmill, and readers of what Celery, RQ and arq left waiting."""
