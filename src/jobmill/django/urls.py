"""The pages of the dashboard: `path("jobs/", include("jobmill.django.urls"))`."""

from __future__ import annotations

from django.urls import re_path

from jobmill.django.views import dashboard

app_name = "jobmill"
urlpatterns = [re_path(r"^(?P<path>.*)$", dashboard, name="dashboard")]
