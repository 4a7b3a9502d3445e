//! Ids above 65535, which a sandbox has if its spec names them.

use std::os::unix::fs::MetadataExt;

use asb_runtime::{Error, Exit, MemoryDir, Spec};

use crate::common::{World, log, run, shell, volume, wait};

/// As OpenShift gives them to a namespace.
const USER: u32 = 1_000_650_000;
const GROUP: u32 = 70_000;

on_drivers! {
    [gvisor: Gvisor]
    [programs_run_and_own_files_under_large_ids]
}

on_drivers! {
    [native: Native, runc: Runc, crun: Crun]
    [
        programs_run_and_own_files_under_large_ids,
        sandboxes_with_the_same_large_ids_are_different_users_of_the_machine,
        sandboxes_beside_each_other_have_the_same_large_ids,
    ]
}

fn large(world: &World, argv: &[&str]) -> Spec {
    let mut spec = world.spec(argv);
    spec.extra_ids = vec![USER, GROUP];
    (spec.process.uid, spec.process.gid, spec.process.groups) = (USER, GROUP, vec![USER]);
    // The image's own is for root alone.
    spec.process.cwd = "/".into();
    spec
}

async fn programs_run_and_own_files_under_large_ids(world: World) {
    let data = tempfile::tempdir().expect("temporary directory");
    std::fs::set_permissions(data.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .expect("opened to all");
    let script = "id -u; id -g; id -G; cd /data && touch mine && chgrp 1000650000 mine && stat -c %u:%g mine";
    let mut spec = large(&world, &["sh", "-c", script]);
    spec.mounts.push(volume(data.path(), "/data"));
    let sandbox = world.native.start(&spec).await.expect("starts");
    assert_eq!(wait(&sandbox).await.exit, Exit::Code(0), "{}", log(&sandbox));
    let lines = ["1000650000", "70000", "70000 1000650000", "1000650000:1000650000"];
    assert_eq!(log(&sandbox), lines.map(|line| format!("stdout F {line}\n")).concat());
    // On disk they are what they are inside, so that the next sandbox finds them again.
    let file = data.path().join("mine").metadata().expect("there");
    assert_eq!((file.uid(), file.gid()), (USER, USER));
    world.finish().await;
}

async fn sandboxes_with_the_same_large_ids_are_different_users_of_the_machine(world: World) {
    let mut seen = Vec::new();
    for _ in 0..2 {
        let sandbox = world.native.start(&large(&world, &["sleep", "1000"])).await.expect("starts");
        let map = run(&sandbox, &shell("cat /proc/self/uid_map")).await.stdout;
        let rows: Vec<Vec<u32>> = map
            .lines()
            .map(|line| line.split_whitespace().map(|word| word.parse().expect("a number")).collect())
            .collect();
        assert_eq!((rows[0][0], rows[0][2]), (0, 65_536), "{map}");
        assert_eq!([rows[1][0], rows[2][0]], [USER, GROUP], "{map}");
        assert!(rows[1..].iter().all(|row| row[2] == 1), "{map}");
        seen.extend(rows.into_iter().map(|row| row[1]..row[1] + row[2]));
    }
    for (at, one) in seen.iter().enumerate() {
        let shared = seen[..at].iter().find(|other| other.start < one.end && one.start < other.end);
        assert!(shared.is_none(), "{one:?} and {shared:?} are the same users of the machine");
    }
    world.finish().await;
}

async fn sandboxes_beside_each_other_have_the_same_large_ids(world: World) {
    let data = tempfile::tempdir().expect("temporary directory");
    let memory = MemoryDir { path: data.path().to_owned(), bytes: 1 << 20, group: GROUP };
    let id = asb_runtime::SandboxId::new(format!("{}-common", world.spec(&[]).id)).expect("valid");
    let common = world.native.common(id, "box".to_owned(), vec![memory.clone()]);
    let common = world.native.start(&Spec { extra_ids: vec![USER, GROUP], ..common }).await.expect("starts");
    let beside = || Spec {
        beside: Some(common.id().clone()),
        memory_dirs: vec![memory.clone()],
        mounts: vec![volume(data.path(), "/memory")],
        ..large(&world, &["sleep", "1000"])
    };
    let one = world.native.start(&beside()).await.expect("starts");
    let two = world.native.start(&beside()).await.expect("starts");
    let wrote = run(&one, &shell("umask 077; echo word > /memory/file")).await;
    assert_eq!(wrote.exit, Exit::Code(0), "{wrote:?}");
    let read = run(&two, &shell("cat /memory/file; stat -c %u:%g /memory /memory/file")).await;
    assert_eq!(read.stdout, "word\n0:70000\n1000650000:70000\n", "{read:?}");
    world.finish().await;
}

#[tokio::test]
async fn an_id_that_the_spec_does_not_name_is_refused() {
    let world = World::new();
    let mut unnamed = world.spec(&[]);
    unnamed.process.uid = USER;
    let mut small = world.spec(&[]);
    small.extra_ids = vec![1000];
    let mut many = world.spec(&[]);
    many.extra_ids = (70_000..70_017).collect();
    for (spec, field) in [(unnamed, "process.uid"), (small, "extra_ids"), (many, "extra_ids")] {
        match world.native.start(&spec).await {
            Err(Error::Invalid(invalid)) => assert_eq!(invalid.field, field),
            other => panic!("{other:?}"),
        }
    }
    world.finish().await;
}
