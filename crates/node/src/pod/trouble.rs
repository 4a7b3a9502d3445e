//! Containers that do not start yet, or wait to be started again: what is told about it, and when the next try is.

use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::plan::{Doing, Plan, back_off};
use super::spec::Refusal;
use super::worker::Worker;
use crate::disk::PRESSURE;
use crate::image;
use crate::node::uid;
use crate::references::References;

/// How long an error of an image is shown before the wait for the next try is.
const IMAGE_ERROR_SHOWN: Duration = Duration::from_secs(2);

/// Why a container could not be started.
pub struct Trouble {
    refusal: Refusal,
    /// Tries in a row that ended like this.
    tries: u32,
    at: SystemTime,
    /// Of an image: that the next try has to wait is told already.
    pause_told: bool,
}

impl Worker {
    /// The Pod asks for what cannot be had here.
    pub(super) fn refuse(&mut self, refusal: Refusal) {
        tracing::warn!(reason = refusal.reason, message = refusal.message, "Pod refused");
        self.node.shared.events.warn(&self.pod, refusal.reason, &refusal.message);
        self.refused = Some(refusal);
    }

    /// A start was refused: tells why, once for each reason, and sets the time of the next one.
    pub(super) fn note_trouble(&mut self, index: usize, refusal: Refusal, references: References) {
        let (now, known) = (SystemTime::now(), self.hands[index].trouble.take());
        let (of_image, pressed) = (image::is_about(&refusal), refusal.reason == PRESSURE);
        let again = known.as_ref().filter(|known| {
            of_image || known.refusal == refusal || (pressed && known.refusal.reason == PRESSURE)
        });
        let tries = again.map_or(0, |known| known.tries + 1);
        if of_image || again.is_none() {
            tracing::warn!(reason = refusal.reason, message = refusal.message, "container cannot start");
            self.tell_trouble(index, &refusal);
        }
        let seen = &mut self.seen[index];
        (seen.waits, seen.not_before) = (Some(refusal.clone()), Some(now + back_off(tries)));
        self.hands[index].trouble = Some(Trouble { refusal, tries, at: now, pause_told: false });
        if pressed {
            let disk = self.node.shared.disk.clone();
            self.awaited = Some(Box::pin(async move { disk.relieved().await }));
        } else if !of_image {
            let client = self.node.shared.client.clone();
            // What it names may come or change at any time.
            self.awaited = Some(Box::pin(async move { references.changed(&client).await }));
        }
    }

    fn tell_trouble(&self, index: usize, refusal: &Refusal) {
        let slot = self.hands[index].slot;
        let messages = match refusal.reason {
            _ if image::is_about(refusal) => image::failure(slot.image(&self.pod), refusal).into(),
            "CreateContainerConfigError" | "CreateContainerError" => {
                vec![("Failed", format!("Error: {}", refusal.message))]
            }
            other => vec![(other, refusal.message.clone())],
        };
        for (reason, message) in messages {
            match reason {
                // A volume is the Pod's, whichever container waits for it.
                "FailedMount" => self.node.shared.events.warn(&self.pod, reason, message),
                _ => self.node.shared.events.warn_of(&self.pod, slot, reason, message),
            }
        }
    }

    /// Images whose error was shown long enough: from now on it is the wait that is shown. When to look again.
    pub(super) fn tell_of_images(&mut self, now: SystemTime) -> Option<SystemTime> {
        let mut wake = None;
        for index in 0..self.hands.len() {
            let Some(trouble) = &mut self.hands[index].trouble else { continue };
            if trouble.pause_told || trouble.refusal.reason != "ErrImagePull" {
                continue;
            }
            let until = trouble.at + IMAGE_ERROR_SHOWN;
            if now < until {
                wake = wake.into_iter().chain([until]).min();
                continue;
            }
            trouble.pause_told = true;
            let refusal = trouble.refusal.clone();
            let (slot, events) = (self.hands[index].slot, &self.node.shared.events);
            let waiting = image::back_off(slot.image(&self.pod), &refusal);
            events.tell_of(&self.pod, slot, "BackOff", image::back_off_message(slot.image(&self.pod)));
            events.warn_of(&self.pod, slot, "Failed", format!("Error: {}", waiting.reason));
            self.seen[index].waits = Some(waiting);
        }
        wake
    }

    /// Containers that ended and whose next start has to wait say so.
    pub(super) fn tell_of_pauses(&mut self, plan: &Plan) {
        for &index in &plan.pauses {
            let seen = &self.seen[index];
            let (Doing::Ended(end), None, Some(until)) = (&seen.doing, &seen.waits, seen.not_before) else {
                continue;
            };
            let pause = until.duration_since(end.at).unwrap_or_default();
            let (name, pod) = (self.name(index), full_name(&self.pod));
            let told = format!("Back-off restarting failed container {name} in pod {pod}");
            let message =
                format!("back-off {} restarting failed container={name} pod={pod}", go_duration(pause));
            self.node.shared.events.warn_of(&self.pod, self.hands[index].slot, "BackOff", told);
            self.seen[index].waits = Some(Refusal::new("CrashLoopBackOff", message));
        }
    }
}

/// As the kubelet names a Pod in messages.
fn full_name(pod: &Pod) -> String {
    format!("{}_{}({})", pod.name_any(), pod.namespace().unwrap_or_default(), uid(pod))
}

/// Whole seconds as Go prints them: `10s`, `1m20s`, `5m0s`.
fn go_duration(time: Duration) -> String {
    match (time.as_secs() / 60, time.as_secs() % 60) {
        (0, seconds) => format!("{seconds}s"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_said_as_the_kubelet_says_them() {
        for (seconds, expected) in [(10, "10s"), (80, "1m20s"), (300, "5m0s")] {
            assert_eq!(go_duration(Duration::from_secs(seconds)), expected);
        }
    }
}
