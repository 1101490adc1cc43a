"""The stores of the crontab. Only a store imports its driver."""
