//! How long a start takes. Not a test: `cargo test -p asb-runtime -- --ignored --nocapture timing`.

use std::time::{Duration, Instant};

use crate::common::{World, log, run, shell};

#[tokio::test]
#[ignore = "prints numbers; run it by name on a quiet machine"]
async fn time_from_start_to_first_output_and_of_an_exec() {
    let world = World::new();
    let (mut plain, mut starts, mut slots) = (Vec::new(), Vec::new(), Vec::new());
    let (mut execs, mut deletes) = (Vec::new(), Vec::new());
    for _ in 0..30 {
        // Back-to-back starts would share the kernel's grace periods.
        tokio::time::sleep(Duration::from_millis(120)).await;
        let began = Instant::now();
        std::process::Command::new("sh").args(["-c", "echo ready"]).output().expect("runs");
        plain.push(began.elapsed());
        tokio::time::sleep(Duration::from_millis(120)).await;
        for (times, parked) in [(&mut starts, false), (&mut slots, true)] {
            if parked {
                world.native.park().await;
            }
            tokio::time::sleep(Duration::from_millis(120)).await;
            let began = Instant::now();
            let sandbox = world.start(&["sh", "-c", "echo ready; sleep 1000"]).await;
            while log(&sandbox).is_empty() {
                tokio::task::yield_now().await;
            }
            times.push(began.elapsed());
            sandbox.delete().await.expect("deletes");
            world.native.unpark().await;
        }
        let sandbox = world.idle().await;
        tokio::time::sleep(Duration::from_millis(120)).await;
        let began = Instant::now();
        run(&sandbox, &shell("true")).await;
        execs.push(began.elapsed());
        let began = Instant::now();
        sandbox.delete().await.expect("deletes");
        deletes.push(began.elapsed());
    }
    for (what, times) in [
        ("bare fork and exec", &mut plain),
        ("start to first output", &mut starts),
        ("the same from a parked slot", &mut slots),
        ("exec of a shell", &mut execs),
        ("delete", &mut deletes),
    ] {
        times.sort();
        println!("{what}: p50 {:?}, p90 {:?}", times[times.len() / 2], times[times.len() * 9 / 10]);
    }
    world.finish().await;
}
