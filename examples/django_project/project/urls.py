"""The shop, the admin site, and the dashboard for staff."""

from django.contrib import admin
from django.urls import include, path
from shop import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("jobs/", include("jobmill.django.urls"), {"title": "shop"}),
    path("orders/", views.orders),
    path("orders/<int:number>/", views.order),
    path("exports/", views.exports),
    path("exports/<str:id>/", views.export),
]
