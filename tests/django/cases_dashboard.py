"""The dashboard in a project of Django: who may see it, who may act, and that forms of other sites are refused."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.auth.models import Permission, User
from django.test import Client as Browser
from django.test import RequestFactory, override_settings
from django.urls import include, path, reverse

from jobmill.django import client
from jobmill.django.checks import check_dashboards
from jobmill.django.views import dashboard
from tests.django.cases_ported import Case
from tests.django.shop import tasks

ROOT = "/a/j%C3%B6bs"
SAME = {"HTTP_SEC_FETCH_SITE": "same-origin"}


class DashboardTestCase(Case):
    """With Django's own users and permissions."""

    def setUp(self) -> None:
        super().setUp()
        User.objects.all().delete()

    def visitor(self, *permissions: str, **fields: Any) -> Browser:
        user = User.objects.create_user("ada", password="secret", **fields)
        user.user_permissions.set(
            Permission.objects.filter(codename__in=permissions, content_type__app_label="jobmill")
        )
        browser = Browser(enforce_csrf_checks=True)
        browser.force_login(user)
        return browser

    def test_the_permissions_are_there(self) -> None:
        found = Permission.objects.filter(content_type__app_label="jobmill").values_list("codename", flat=True)
        self.assertEqual(sorted(found), ["act", "view"])

    def test_strangers_are_sent_to_the_login(self) -> None:
        answer = Browser().get(f"{ROOT}/queues")
        self.assertRedirects(answer, "/login/?next=/a/j%25C3%25B6bs/queues", fetch_redirect_response=False)

    def test_only_staff_with_a_permission_may_enter(self) -> None:
        for fields, permissions, status in (
            ({}, ("view", "act"), 403),
            ({"is_staff": True}, (), 403),
            ({"is_staff": True}, ("view",), 200),
            ({"is_staff": True}, ("act",), 200),
            ({"is_staff": True, "is_superuser": True}, (), 200),
        ):
            with self.subTest(fields=fields, permissions=permissions):
                User.objects.all().delete()
                answer = self.visitor(*permissions, **fields).get(f"{ROOT}/")
                self.assertEqual(answer.status_code, status)

    def test_it_shows_tasks_and_links_below_its_path(self) -> None:
        id = tasks.noop_task.enqueue(1, to="ada").id
        browser = self.visitor("view", is_staff=True)
        answer = browser.get(f"{ROOT}/jobs/{id}")
        self.assertContains(answer, "tests.django.shop.tasks.noop_task")
        self.assertContains(answer, 'href="/a/jöbs/queues"')
        self.assertIn("default-src 'none'", answer["Content-Security-Policy"])
        self.assertEqual(browser.get(f"{ROOT}/nothing").status_code, 404)
        self.assertContains(browser.get("/red/queues"), "shop prod")
        answer = browser.get(f"{ROOT}/queues", headers={"accept": "application/json"})
        self.assertEqual([row["queue"] for row in answer.json()["queues"]], ["default"])

    def test_redact_hides_positional_arguments_too(self) -> None:
        browser = self.visitor("view", is_staff=True)
        known = tasks.reset_password.enqueue("a@x.org", "SECRET", "SECRET2", note="shown").id
        payload = {"args": ["SECRET"], "kwargs": {"note": "shown"}}
        unknown = client().sync.enqueue("shop.tasks.gone", payload).id
        for id, hidden in ((known, ["a@x.org", "•••• hidden", "•••• hidden"]), (unknown, ["•••• hidden"])):
            with self.subTest(id):
                for path in (f"/red/jobs/{id}", f"/red/jobs/{id}?json=1", "/red/jobs?json=1"):
                    self.assertNotContains(browser.get(path), "SECRET")
                job = browser.get(f"/red/jobs/{id}?json=1").json()
                self.assertEqual(job["job"]["payload"], {"args": hidden, "kwargs": {"note": "shown"}})
                self.assertEqual(job["hidden"], hidden.count("•••• hidden"))
                self.assertContains(browser.get(f"{ROOT}/jobs/{id}"), "SECRET")

    def test_acts_need_their_permission_and_have_the_name_of_the_user(self) -> None:
        form = {"queue": "default", "note": "api down", "back": f"{ROOT}/queues"}
        browser = self.visitor("view", is_staff=True)
        self.assertEqual(self.post(browser, form, **SAME).status_code, 403)
        User.objects.all().delete()
        browser = self.visitor("act", is_staff=True)
        self.assertEqual(self.post(browser, form, HTTP_SEC_FETCH_SITE="cross-site").status_code, 403)
        self.assertEqual(self.post(browser, form).status_code, 403)
        self.assertFalse(client().sync.queue("default").settings().paused)
        answer = self.post(browser, form, **SAME)
        self.assertEqual(answer.status_code, 303)
        self.assertTrue(answer["Location"].startswith(f"{ROOT}/queues?done="))
        self.assertContains(browser.get(answer["Location"]), "is paused")
        self.assertTrue(client().sync.queue("default").settings().paused)
        self.assertEqual(client().sync.audit_log(limit=1).entries[0].who, "ada")
        client().sync.queue("default").resume()

    def post(self, browser: Browser, form: dict[str, str], **headers: Any) -> Any:
        body = "&".join(f"{name}={value}" for name, value in form.items())
        kind = "application/x-www-form-urlencoded"
        return browser.generic("POST", f"{ROOT}/acts/pause", body, content_type=kind, **headers)

    def test_an_error_403_names_the_permission_of_django(self) -> None:
        answer = self.post(self.visitor("view", is_staff=True), {"queue": "default"}, **SAME)
        self.assertContains(answer, "needs the permission jobmill.act (pause)", status_code=403)

    def test_wrong_options_are_an_error_of_the_check(self) -> None:
        self.assertEqual(check_dashboards(), [])
        for options, why in (
            ({"tilte": "shop"}, "tilte"),
            ({"color": "pale"}, "color"),
            ({"alias": "mail"}, "mail"),
        ):

            class Wrong:
                urlpatterns: ClassVar = [path("a/", include([path("b/", include("jobmill.django.urls"), options)]))]

            with self.subTest(options), override_settings(ROOT_URLCONF=Wrong):
                (error,) = check_dashboards()
                self.assertEqual(error.id, "jobmill.E005")
                self.assertIn(why, error.msg)

    def test_forms_begin_with_the_payload_of_a_task(self) -> None:
        browser = self.visitor("act", is_staff=True)
        for form in ("recur_add", "enqueue"):
            answer = browser.get(f"{ROOT}/ask/{form}")
            self.assertContains(answer, "{&#34;args&#34;: [], &#34;kwargs&#34;: {}}</textarea>")

    def test_links_to_its_pages(self) -> None:
        self.assertEqual(reverse("jobmill:dashboard", args=[""]), f"{ROOT}/")
        self.assertEqual(reverse("red:dashboard", args=["jobs/7"]), "/red/jobs/7")

    def test_it_answers_requests_of_asgi(self) -> None:
        from django.test import AsyncRequestFactory

        user = User.objects.create_superuser("grace")
        for factory in (RequestFactory(), AsyncRequestFactory()):
            request = factory.get("/a/jobs/queues")
            request.user = user
            answer = dashboard(request, "queues")
            self.assertEqual(answer.status_code, 200)
            self.assertIn('href="/a/jobs/workers"', answer.content.decode())
