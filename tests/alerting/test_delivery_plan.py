"""The delivery plan as a property: after any sequence of events, every peer has the current alerts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import example, given
from hypothesis import strategies as st

from queenright.alerting.delivery_plan import SentAlert, plan
from queenright.alerting.notification import Notification
from queenright.alerting.settings import AlertingSettings
from tests.alerting.parts import T0

SETTINGS = AlertingSettings()


@dataclass
class Simulation:
    """Notifications, and one peer that keeps alerts while they are repeated."""

    now: float = T0
    notifications: dict[int, Notification] = field(default_factory=dict)
    said: dict[str, SentAlert] = field(default_factory=dict)
    believes: dict[str, float] = field(default_factory=dict)
    ever: set[str] = field(default_factory=set)
    ends: set[str] = field(default_factory=set)
    people: dict[str, bool] = field(default_factory=dict)
    """The peer's last message per alert: whether it fires. It survives the peer's restart."""
    wrong: list[str] = field(default_factory=list)

    def open(self, key: str) -> None:
        number = len(self.notifications)
        self.notifications[number] = Notification(
            id=number,
            ticket_id=f"t{number}",
            key=key,
            labels={"key": key},
            annotations={},
            starts_at=self.now,
            created_at=self.now,
            updated_at=self.now,
        )

    def end(self, number: int) -> None:
        if self.notifications:
            notification = list(self.notifications.values())[number % len(self.notifications)]
            if notification.ends_at is None:
                self.notifications[notification.id] = replace(
                    notification, ends_at=self.now, updated_at=self.now
                )

    def deliver(self, *, up: bool, crash: bool = False) -> float:
        work = plan(
            self.notifications.values(),
            "p",
            sent_alerts=self.said,
            ends=self.ends,
            refused_versions={},
            settings=SETTINGS,
            now=self.now,
        )
        if not up:
            return self.now
        for post in work.posts:
            self.believes[post.key] = post.alert.ends_at
            if post.status == "firing":
                self.ever.add(post.key)
            if crash:
                continue
            if post.status == "firing":
                self.said[post.key] = SentAlert(self.now, post.text_version)
                self.ends.discard(post.key)
            else:
                self.ends.add(post.key)
            for about in post.new_notifications:
                (about.fired if post.status == "firing" else about.resolved)["p"] = self.now
        if not crash:
            for quiet in work.silent:
                quiet.resolved["p"] = self.now
        else:
            self.restart()
        return work.next_due

    def restart(self) -> None:
        self.said.clear()
        self.ends.clear()

    def flush(self) -> None:
        """Let the peer notify changes, as Alertmanager does once every group_interval."""
        for key, until in self.believes.items():
            fires = until > self.now
            if fires == self.people.get(key, False):
                continue
            if not fires and any(n.key == key and n.ends_at is None for n in self.notifications.values()):
                self.wrong.append(f"an all-clear for {key}, which still fires")
            self.people[key] = fires


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.sampled_from(["a", "b"])),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("pass"), st.sampled_from([1, 59, 60, 61, 4000])),
        st.tuples(st.sampled_from(["deliver", "down", "crash", "restart", "peer restart"]), st.just(0)),
    ),
    max_size=40,
)


@given(ACTIONS)
# B124: the peer got the end, and restarted before it notified anybody.
@example([("open", "a"), ("deliver", 0), ("pass", 60), ("end", 0), ("deliver", 0), ("peer restart", 0)])
# The service was down for more than an hour.
@example([("open", "a"), ("deliver", 0), ("pass", 60), ("pass", 4000)])
def test_delivery_plan_follows_current_tickets_without_loss(
    actions: list[tuple[str, int | str]],
) -> None:
    """B77: with outages, crashes and restarts between any two steps."""
    world = Simulation()
    for action, value in actions:
        if action == "open":
            world.open(str(value))
        elif action == "end":
            world.end(int(value))
        elif action == "pass":
            world.now += float(value)
            if float(value) > 1:
                world.flush()
        elif action == "restart":
            world.restart()
        elif action == "peer restart":
            # The connection to the peer breaks, and the outbox notices.
            world.believes.clear()
            world.ends.clear()
        else:
            world.deliver(up=action != "down", crash=action == "crash")
    # Now the peer stays up: a few rounds deliver everything.
    for _ in range(4):
        world.deliver(up=True)
        world.now += SETTINGS.late_resolve_seconds
        world.flush()

    holding = {n.key for n in world.notifications.values() if n.ends_at is None}
    believed = {key for key, until in world.believes.items() if until > world.now}
    assert believed == holding
    assert world.ever == {n.key for n in world.notifications.values()}
    for notification in world.notifications.values():
        assert notification.ends_at is None or "p" in notification.resolved
    # B124: no all-clear for an alert that fires, and no firing message that stays after the end.
    assert world.wrong == []
    assert {key for key, fires in world.people.items() if fires} == holding
    # Then nothing is sent until the next repeat.
    world.deliver(up=True)
    assert world.deliver(up=True) > world.now
