"""Orders."""

from django.db import models


class Order(models.Model):
    """One order of a customer."""

    customer = models.CharField(max_length=100)
    amount = models.IntegerField()
    receipt_sent = models.BooleanField(default=False)
    closed = models.BooleanField(default=False)
