//! Containers that do not start yet, or wait to be started again: what is told about it, and when the next try is.

use std::time::{Duration, SystemTime};

use super::plan::{Doing, Plan, back_off};
use super::spec::Refusal;
use super::worker::Worker;
use crate::disk::PRESSURE;
use crate::event;
use crate::image;
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
    pub(super) async fn refuse(&mut self, refusal: Refusal) {
        tracing::warn!(reason = refusal.reason, message = refusal.message, "Pod refused");
        event::warn(&self.node.shared.client, &self.pod, refusal.reason, &refusal.message).await;
        self.refused = Some(refusal);
    }

    /// A start was refused: tells why, once for each reason, and sets the time of the next one.
    pub(super) async fn note_trouble(&mut self, index: usize, refusal: Refusal, references: References) {
        let (now, known) = (SystemTime::now(), self.hands[index].trouble.take());
        let (of_image, pressed) = (image::is_about(&refusal), refusal.reason == PRESSURE);
        let again = known.as_ref().filter(|known| {
            of_image || known.refusal == refusal || (pressed && known.refusal.reason == PRESSURE)
        });
        let tries = again.map_or(0, |known| known.tries + 1);
        if of_image || again.is_none() {
            tracing::warn!(reason = refusal.reason, message = refusal.message, "container cannot start");
            self.tell_trouble(index, &refusal).await;
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

    async fn tell_trouble(&mut self, index: usize, refusal: &Refusal) {
        let (client, container) = (&self.node.shared.client, self.hands[index].slot.of(&self.pod));
        let messages = match refusal.reason {
            _ if image::is_about(refusal) => {
                let failure = image::failure(container, refusal);
                vec![("Failed", failure), ("Failed", format!("Error: {}", refusal.reason))]
            }
            "CreateContainerConfigError" | "CreateContainerError" => {
                vec![("Failed", format!("Error: {}", refusal.message))]
            }
            other => vec![(other, refusal.message.clone())],
        };
        for (reason, message) in messages {
            event::warn(client, &self.pod, reason, &message).await;
        }
    }

    /// Images whose error was shown long enough: from now on it is the wait that is shown. When to look again.
    pub(super) async fn tell_of_images(&mut self, now: SystemTime) -> Option<SystemTime> {
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
            let waiting = image::back_off(self.hands[index].slot.of(&self.pod), &refusal);
            event::tell(&self.node.shared.client, &self.pod, "BackOff", &waiting.message).await;
            self.seen[index].waits = Some(waiting);
        }
        wake
    }

    /// Containers that ended and whose next start has to wait say so.
    pub(super) async fn tell_of_pauses(&mut self, plan: &Plan) {
        for &index in &plan.pauses {
            let seen = &self.seen[index];
            let (Doing::Ended(end), None, Some(until)) = (&seen.doing, &seen.waits, seen.not_before) else {
                continue;
            };
            let pause = until.duration_since(end.at).unwrap_or_default();
            let message = format!(
                "container {} ended with exit code {} and is started again in {pause:?}",
                self.name(index),
                end.code
            );
            event::warn(&self.node.shared.client, &self.pod, "BackOff", &message).await;
            self.seen[index].waits = Some(Refusal::new("CrashLoopBackOff", message));
        }
    }
}
