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
class PeerSimulation:
    """Notifications, and one peer that keeps alerts while they are repeated."""

    now: float = T0
    notifications: dict[int, Notification] = field(default_factory=dict)
    sent_alerts: dict[str, SentAlert] = field(default_factory=dict)
    peer_alerts: dict[str, float] = field(default_factory=dict)
    fired_keys: set[str] = field(default_factory=set)
    ended_keys: set[str] = field(default_factory=set)
    notified_states: dict[str, bool] = field(default_factory=dict)
    """The peer's last message per alert: whether it fires. It survives the peer's restart."""
    faults: list[str] = field(default_factory=list)

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

    def deliver(self, *, is_up: bool, should_crash: bool = False) -> float:
        work = plan(
            self.notifications.values(),
            "p",
            sent_alerts=self.sent_alerts,
            ends=self.ended_keys,
            refused_versions={},
            settings=SETTINGS,
            now=self.now,
        )
        if not is_up:
            return self.now
        for post in work.posts:
            self.peer_alerts[post.key] = post.alert.ends_at
            if post.status == "firing":
                self.fired_keys.add(post.key)
            if should_crash:
                continue
            if post.status == "firing":
                self.sent_alerts[post.key] = SentAlert(self.now, post.text_version)
                self.ended_keys.discard(post.key)
            else:
                self.ended_keys.add(post.key)
            for notification in post.new_notifications:
                (notification.fired if post.status == "firing" else notification.resolved)["p"] = self.now
        if not should_crash:
            for silent_notification in work.silent:
                silent_notification.resolved["p"] = self.now
        else:
            self.restart()
        return work.next_due

    def restart(self) -> None:
        self.sent_alerts.clear()
        self.ended_keys.clear()

    def flush(self) -> None:
        """Let the peer notify changes, as Alertmanager does once every group_interval."""
        for key, expires_at in self.peer_alerts.items():
            fires = expires_at > self.now
            if fires == self.notified_states.get(key, False):
                continue
            if not fires and any(
                notification.key == key and notification.ends_at is None
                for notification in self.notifications.values()
            ):
                self.faults.append(f"an all-clear for {key}, which still fires")
            self.notified_states[key] = fires


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
    world = PeerSimulation()
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
            world.peer_alerts.clear()
            world.ended_keys.clear()
        else:
            world.deliver(is_up=action != "down", should_crash=action == "crash")
    # Now the peer stays up: a few rounds deliver everything.
    for _ in range(4):
        world.deliver(is_up=True)
        world.now += SETTINGS.late_resolve_seconds
        world.flush()

    firing_keys = {
        known_notification.key
        for known_notification in world.notifications.values()
        if known_notification.ends_at is None
    }
    known_keys = {key for key, expires_at in world.peer_alerts.items() if expires_at > world.now}
    assert known_keys == firing_keys
    assert world.fired_keys == {known_notification.key for known_notification in world.notifications.values()}
    for notification in world.notifications.values():
        assert notification.ends_at is None or "p" in notification.resolved
    # B124: no all-clear for an alert that fires, and no firing message that stays after the end.
    assert world.faults == []
    assert {key for key, fires in world.notified_states.items() if fires} == firing_keys
    # Then nothing is sent until the next repeat.
    world.deliver(is_up=True)
    assert world.deliver(is_up=True) > world.now
