//! A sandbox from start to end: output, exit, programs beside the main one, limits, deletion.

mod common;

use asb_runtime::Exit;
use common::{World, log, wait};

#[tokio::test]
async fn output_is_in_the_log_and_the_exit_code_is_kept() {
    let world = World::new();
    let sandbox = world.start(&["sh", "-c", "echo hello; echo oops >&2; printf end; exit 7"]).await;
    assert_eq!(wait(&sandbox).await.exit, Exit::Code(7));
    let log = log(&sandbox);
    assert!(log.contains("stdout F hello\n"), "{log}");
    assert!(log.contains("stderr F oops\n"), "{log}");
    assert!(log.contains("stdout P end\n"), "{log}");
    assert_eq!(wait(&sandbox).await, wait(&sandbox).await, "the answer never changes");
    world.finish().await;
}
