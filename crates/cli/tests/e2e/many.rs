//! Many sandboxes, one after the other and at once: all of them work and none leaves a trace.
//!
//! `ASB_CYCLES=1000` and `ASB_SANDBOXES=200` make these tests long.

use std::time::Instant;

use futures::future::try_join_all;

use crate::engine::{Engine, assert_nothing_left, eventually};
use crate::sandboxes::{Sandboxes, number};

/// So many cycles go on at the same time.
const ABREAST: usize = 4;

async fn cycle(sandboxes: &Sandboxes, name: &str) -> anyhow::Result<()> {
    sandboxes.create(name).await?;
    sandboxes.ready(name).await?;
    let printed = sandboxes.run(name, "hostname").await?;
    anyhow::ensure!(printed == format!("{name}\n"), "{name} answered {printed:?}");
    sandboxes.delete(name).await?;
    sandboxes.gone(name).await
}

/// Goes through `count` cycles.
async fn cycles(sandboxes: &Sandboxes, what: &str, count: usize) {
    let rows = (0..ABREAST).map(|row| async move {
        for number in (row..count).step_by(ABREAST) {
            cycle(sandboxes, &format!("{what}-{number}")).await?;
        }
        anyhow::Ok(())
    });
    try_join_all(rows).await.unwrap_or_else(|error| panic!("{error:?}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cycles_of_creating_and_deleting_leave_nothing_while_the_engine_runs() {
    let count = number("ASB_CYCLES", 40);
    let engine = Engine::start();
    let sandboxes = Sandboxes::new(&engine.client().await);
    cycles(&sandboxes, "first", ABREAST * 2).await;
    let before = engine.descriptors();
    let begun = Instant::now();
    cycles(&sandboxes, "cycle", count).await;
    println!(
        "{count} cycles in {:?}; {before} descriptors before, {} after",
        begun.elapsed(),
        engine.descriptors()
    );
    eventually("the engine has closed what it opened for them", || engine.descriptors() <= before + ABREAST);
    assert_nothing_left(engine.data_dir.path());
    engine.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_sandboxes_at_once_are_all_ready_and_answer() {
    let count = number("ASB_SANDBOXES", 25);
    let engine = Engine::start();
    let sandboxes = &Sandboxes::new(&engine.client().await);
    let names: Vec<_> = (0..count).map(|number| format!("dense-{number}")).collect();
    let begun = Instant::now();
    try_join_all(names.iter().map(|name| sandboxes.create(name))).await.unwrap();
    let created = begun.elapsed();
    try_join_all(names.iter().map(|name| sandboxes.ready(name)))
        .await
        .unwrap_or_else(|error| panic!("{error:?}"));
    let ready = begun.elapsed();
    for name in &names {
        let printed = sandboxes.run(name, "hostname").await.unwrap_or_else(|error| panic!("{error:?}"));
        assert_eq!(printed, format!("{name}\n"));
    }
    println!("{count} sandboxes: created {created:?}, ready {ready:?}, answered {:?}", begun.elapsed());
    try_join_all(names.iter().map(|name| sandboxes.delete(name))).await.unwrap();
    try_join_all(names.iter().map(|name| sandboxes.gone(name)))
        .await
        .unwrap_or_else(|error| panic!("{error:?}"));
    println!("all gone after {:?}", begun.elapsed());
    assert_nothing_left(engine.data_dir.path());
    engine.stop();
}
