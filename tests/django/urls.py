"""The dashboard at a path with a letter that is not ASCII."""

from __future__ import annotations

from django.urls import include, path

urlpatterns = [
    path("a/jöbs/", include("jobmill.django.urls")),
    path(
        "red/",
        include("jobmill.django.urls", namespace="red"),
        {"title": "shop prod", "color": "red", "redact": ("*token*",)},
    ),
]
