"""No tables: only the permissions for the dashboard, which Django makes for models."""

from __future__ import annotations

from django.db import models


class Jobs(models.Model):
    """The jobs, which are in a store and not in a table of Django."""

    class Meta:
        """Permissions `jobmill.view` and `jobmill.act`."""

        managed = False
        default_permissions = ()
        permissions = (("view", "Can see jobs"), ("act", "Can change jobs, queues and workers"))
        verbose_name_plural = "jobs"
