"""The table of orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """The table of orders."""

    initial = True
    operations = (
        migrations.CreateModel(
            "Order",
            (
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("customer", models.CharField(max_length=100)),
                ("amount", models.IntegerField()),
                ("receipt_sent", models.BooleanField(default=False)),
                ("closed", models.BooleanField(default=False)),
            ),
        ),
    )
