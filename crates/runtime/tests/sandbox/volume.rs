//! Host directories and files made visible inside.

use std::os::unix::fs::MetadataExt;

use asb_runtime::{Exit, MemoryDir};

use crate::common::{World, run, shell, volume};

#[tokio::test]
async fn data_outlives_its_sandbox_and_belongs_to_the_same_ids_in_the_next() {
    let world = World::new();
    let data = tempfile::tempdir().expect("temporary directory");
    let mut first = world.spec(&[]);
    first.mounts.push(volume(data.path(), "/data"));
    let mut second = first.clone();
    second.id = world.spec(&[]).id;
    let first = world.native.start(&first).await.expect("starts");
    let second = world.native.start(&second).await.expect("starts beside it, with other ids");
    let wrote = run(&first, &shell("echo kept > /data/file && touch /data/user && chown 1000:1000 /data/user && cut -c1-40 /proc/self/uid_map")).await;
    assert_eq!(wrote.exit, Exit::Code(0), "{wrote:?}");
    first.delete().await.expect("deletes");

    let read = run(
        &second,
        &shell("cat /data/file; stat -c %u:%g /data /data/file /data/user; cut -c1-40 /proc/self/uid_map"),
    )
    .await;
    assert!(read.stdout.starts_with("kept\n0:0\n0:0\n1000:1000\n"), "{read:?}");
    assert!(!read.stdout.ends_with(&wrote.stdout), "both had the same range of ids: {read:?}");
    assert_eq!(data.path().join("file").metadata().expect("there").uid(), 0);
    assert_eq!(data.path().join("user").metadata().expect("there").uid(), 1000);
    world.finish().await;
}

#[tokio::test]
async fn read_only_volume_and_single_file_are_what_they_say() {
    let world = World::new();
    let data = tempfile::tempdir().expect("temporary directory");
    std::fs::write(data.path().join("token"), "secret").expect("written");
    let mut spec = world.spec(&[]);
    let mut directory = volume(data.path(), "/var/run/secrets/deep");
    directory.read_only = true;
    spec.mounts = vec![directory, volume(&data.path().join("token"), "/etc/token")];
    let sandbox = world.native.start(&spec).await.expect("starts");
    let output = run(
        &sandbox,
        &shell("cat /var/run/secrets/deep/token /etc/token; touch /var/run/secrets/deep/x || echo refused"),
    )
    .await;
    assert_eq!(output.stdout, "secretsecretrefused\n", "{output:?}");
    world.finish().await;
}

#[tokio::test]
async fn link_in_the_image_does_not_lead_a_volume_out_of_the_root() {
    let world = World::new();
    let data = tempfile::tempdir().expect("temporary directory");
    let layer = tempfile::tempdir().expect("temporary directory");
    let victim = tempfile::tempdir().expect("temporary directory");
    for (name, target) in
        [("up", "../../../../.."), ("away", victim.path().to_str().expect("plain")), ("kernel", "/proc/1")]
    {
        std::os::unix::fs::symlink(target, layer.path().join(name)).expect("linked");
    }
    let with = |target: String| {
        let mut spec = world.spec(&[]);
        spec.root.layers.insert(0, layer.path().to_owned());
        spec.mounts.push(volume(data.path(), &target));
        spec
    };
    let out_by_dots = with(format!("/up{}/planted", victim.path().display()));
    let sandbox = world.native.start(&out_by_dots).await.expect("stays inside");
    assert_eq!(
        run(&sandbox, &shell(&format!("test -d {}/planted", victim.path().display()))).await.exit,
        Exit::Code(0)
    );
    // The link's target does not exist inside: not followed, not made.
    assert!(world.native.start(&with("/away/planted".to_owned())).await.is_err());
    let over_kernel = world.native.start(&with("/kernel/attr".to_owned())).await.expect_err("refused");
    assert!(over_kernel.to_string().contains("mount a volume over /kernel/attr"), "{over_kernel}");
    assert_eq!(std::fs::read_dir(victim.path()).expect("listed").count(), 0, "the machine was touched");
    world.finish().await;
}

#[tokio::test]
async fn link_in_a_volume_leads_nowhere_but_inside() {
    let world = World::new();
    let data = tempfile::tempdir().expect("temporary directory");
    let secret = tempfile::tempdir().expect("temporary directory");
    std::fs::write(secret.path().join("key"), "secret").expect("written");
    std::os::unix::fs::symlink(secret.path(), data.path().join("host")).expect("linked");
    std::os::unix::fs::symlink("../../../../../../..", data.path().join("up")).expect("linked");
    let mut spec = world.spec(&[]);
    spec.mounts.push(volume(data.path(), "/data"));
    let sandbox = world.native.start(&spec).await.expect("starts");
    let script = format!(
        "cat /data/host/key; cat /data/up{}/key; cat /data/../../..{}/key",
        secret.path().display(),
        secret.path().display()
    );
    let output = run(&sandbox, &shell(&script)).await;
    assert_eq!((output.stdout.as_str(), output.exit), ("", Exit::Code(1)), "{output:?}");
    world.finish().await;
}

#[tokio::test]
async fn part_of_a_volume_cannot_be_a_part_of_the_machine_whatever_links_a_sandbox_plants() {
    let world = World::new();
    let data = tempfile::tempdir().expect("temporary directory");
    let victim = tempfile::tempdir().expect("temporary directory");
    std::fs::write(victim.path().join("key"), "secret").expect("written");
    let mut attacker = world.spec(&[]);
    attacker.mounts.push(volume(data.path(), "/data"));
    let attacker = world.native.start(&attacker).await.expect("starts");
    let script = format!(
        "test -e /.asb/sandboxd && cd /data && mkdir real && echo mine > real/file && ln -s real good && \
         ln -s {victim} away && ln -s ../../../../../../../../..{victim} up && ln -s {victim}/key key && \
         ln -s /proc/self/root{victim} magic",
        victim = victim.path().display()
    );
    assert_eq!(run(&attacker, &shell(&script)).await.exit, Exit::Code(0));

    for planted in ["away", "up", "key", "magic", "away/key", "up/key"] {
        let mut spec = world.spec(&[]);
        let mut part = volume(data.path(), "/part");
        part.sub_path = planted.into();
        spec.mounts.push(part);
        // Either there is no such part, or it is one of the volume; never one of the machine.
        if let Ok(sandbox) = world.native.start(&spec).await {
            let output = run(&sandbox, &shell("cat /part /part/key; touch /part/planted")).await;
            assert!(!output.stdout.contains("secret"), "{planted}: {output:?}");
        }
    }
    let names = std::fs::read_dir(victim.path()).expect("listed").count();
    assert_eq!(names, 1, "the machine was touched");

    let mut spec = world.spec(&[]);
    for (sub_path, target) in [("good/file", "/file"), ("new/deep", "/new"), ("good", "/again")] {
        let mut part = volume(data.path(), target);
        part.sub_path = sub_path.into();
        spec.mounts.push(part);
    }
    let sandbox = world.native.start(&spec).await.expect("honest parts are found or made");
    let output = run(&sandbox, &shell("cat /file /again/file; stat -c %u:%a /new; touch /new/x")).await;
    assert_eq!((output.stdout.as_str(), output.exit), ("mine\nmine\n0:777\n", Exit::Code(0)), "{output:?}");
    assert!(data.path().join("new/deep/x").exists());
    for refused in ["../x", "/etc", "a/../../x"] {
        let mut spec = world.spec(&[]);
        let mut part = volume(data.path(), "/part");
        part.sub_path = refused.into();
        spec.mounts.push(part);
        let error = world.native.start(&spec).await.expect_err("refused");
        assert!(format!("{error:?}").contains("mounts[0].sub_path"), "{error:?}");
    }
    world.finish().await;
}

#[tokio::test]
async fn volume_in_memory_holds_no_more_than_its_size_and_leaves_the_disk_alone() {
    let world = World::new();
    let data = tempfile::tempdir().expect("temporary directory");
    let mut spec = world.spec(&[]);
    spec.memory_dirs.push(MemoryDir { path: data.path().to_owned(), bytes: 1 << 20, group: 7 });
    let mut part = volume(data.path(), "/part");
    part.sub_path = "a/b".into();
    spec.mounts = vec![volume(data.path(), "/memory"), part];
    let sandbox = world.native.start(&spec).await.expect("starts");
    let script = "stat -f -c %T /memory; stat -c %u:%g:%a /memory; touch /part/x; ls /memory/a/b; \
        head -c 2000000 /dev/zero > /memory/large 2>/dev/null || echo full; stat -c %s /memory/large";
    let output = run(&sandbox, &shell(script)).await;
    assert_eq!(output.stdout, "tmpfs\n0:7:3777\nx\nfull\n1048576\n", "{output:?}");
    assert_eq!(std::fs::read_dir(data.path()).expect("listed").count(), 0, "nothing of it is on disk");
    world.finish().await;
}
