//! Steps of the background tasks. A panic is a mistake about one object: it ends the step, never the task.

use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;

/// Runs one step of a task; `None` if it panicked. The panic itself is reported by the panic hook.
pub(crate) async fn step<T>(task: &'static str, work: impl Future<Output = T>) -> Option<T> {
    let done = AssertUnwindSafe(work).catch_unwind().await;
    done.inspect_err(|_| tracing::error!(task, "a step of a background task panicked")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_goes_on_after_a_step_that_panics() {
        let mut done = Vec::new();
        for number in 0..3 {
            done.push(
                step("test", async move { if number == 1 { panic!("one object") } else { number } }).await,
            );
        }
        assert_eq!(done, [Some(0), None, Some(2)]);
    }
}
