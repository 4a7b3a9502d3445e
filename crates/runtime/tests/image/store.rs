//! What the store keeps, shares, refuses to remove and cleans up.

use std::os::unix::fs::MetadataExt;

use asb_runtime::image::{Error, Images, User};
use asb_testing::{ImageBuilder, TarBuilder, digest};

use crate::common::{World, exists, hex, nobody, reference, story};

fn layout(world: &World, name: &str, image: &asb_testing::Built) -> std::path::PathBuf {
    for (path, bytes) in image.layout(Some(name)) {
        world.write(&format!("layout-{}/{path}", name.replace(':', "-")), &bytes);
    }
    world.directory.path().join(format!("layout-{}", name.replace(':', "-")))
}

fn import(world: &World, name: &str, image: &asb_testing::Built) {
    world.images.import(&layout(world, name, image), None).unwrap();
}

#[test]
fn layers_are_shared_and_removed_with_the_last_image_that_has_them() {
    let world = World::new();
    let base = || ImageBuilder::default().files(&[("base", "b")]);
    import(&world, "one:1", &base().files(&[("one", "1")]).build());
    import(&world, "two:1", &base().files(&[("two", "2")]).build());
    assert_eq!(world.layers().len(), 3, "the base is there once");
    assert_eq!(
        (world.read("one:1", "base"), world.read("two:1", "two")),
        (Some("b".into()), Some("2".into()))
    );

    let (_, removed) = world.images.remove(&reference("one:1"), nobody).unwrap();
    assert_eq!((removed.layers, world.layers().len()), (1, 2), "the base is still of use");
    world.images.remove(&reference("two:1"), nobody).unwrap();
    assert!(world.layers().is_empty() && world.images.list().unwrap().is_empty());
    world.assert_tidy();
}

#[test]
fn image_that_a_sandbox_uses_is_not_removed_and_the_sandbox_named() {
    let world = World::new();
    let image = ImageBuilder::default().files(&[("f", "x")]).build();
    import(&world, "app:1", &image);
    let (found, lease) = world.images.find("app:1").unwrap().unwrap();
    drop(lease);
    let user = || Ok(vec![User { name: "web".into(), layers: found.root.layers.clone() }]);
    let error = world.images.remove(&reference("app:1"), user).unwrap_err();
    assert!(matches!(&error, Error::InUse { by, .. } if by == &["web"]), "{error}");

    // Under a second name it may lose the first, and keeps its layers.
    import(&world, "app:2", &image);
    world.images.remove(&reference("app:1"), user).unwrap();
    assert_eq!(world.layers().len(), 1);
    world.images.remove(&reference("app:2"), user).unwrap_err();
    world.images.remove(&reference("app:2"), nobody).unwrap();
    assert!(world.layers().is_empty());
}

#[test]
fn layers_that_somebody_is_about_to_use_are_not_pruned() {
    let world = World::new();
    import(&world, "app:1", &ImageBuilder::default().files(&[("f", "x")]).build());
    let (_, lease) = world.images.find("app:1").unwrap().unwrap();
    // Another program takes the name away meanwhile.
    let other = Images::open(&world.path("")).unwrap();
    other.remove(&reference("app:1"), nobody).unwrap();
    assert_eq!(world.layers().len(), 1, "a lease holds it");
    drop(lease);
    assert_eq!(other.prune(nobody).unwrap().layers, 1);
    assert!(world.layers().is_empty());
    world.assert_tidy();
}

#[test]
fn what_a_dead_program_left_half_made_is_removed_by_the_next() {
    let world = World::new();
    // A lease that nobody holds any more, with its temporary directory; and one whose lease is gone already.
    std::fs::write(world.path("leases/1-0"), format!("{}\n", digest(b"x"))).unwrap();
    for name in ["tmp/1-0/layer-0/fs", "tmp/1-1/layer-0/fs/deep"] {
        std::fs::create_dir_all(world.path(name)).unwrap();
        std::fs::write(world.path(name).join("file"), "half").unwrap();
    }
    // One of a program that lives.
    import(&world, "app:1", &ImageBuilder::default().files(&[("f", "x")]).build());
    let (_, lease) = world.images.find("app:1").unwrap().unwrap();
    Images::open(&world.path("")).unwrap();
    assert_eq!((world.list("tmp").len(), world.list("leases").len()), (0, 1));
    drop(lease);
    world.assert_tidy();
}

#[test]
fn layer_that_was_being_written_when_the_machine_went_down_is_not_trusted() {
    let world = World::new();
    import(&world, "app:1", &ImageBuilder::default().files(&[("f", "x")]).build());
    let layer = world.path("layers").join(&world.layers()[0]);
    assert!(!layer.join("boot").exists(), "an image that has a name is on disk");
    std::fs::create_dir_all(world.path(&format!("layers/{}/fs", hex(&digest(b"x"))))).unwrap();
    std::fs::write(world.path(&format!("layers/{}/boot", hex(&digest(b"x")))), "another boot").unwrap();
    let current = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap();
    std::fs::create_dir_all(world.path(&format!("layers/{}/fs", hex(&digest(b"y"))))).unwrap();
    std::fs::write(world.path(&format!("layers/{}/boot", hex(&digest(b"y")))), current).unwrap();
    Images::open(&world.path("")).unwrap();
    assert!(layer.exists() && !world.layers().contains(&hex(&digest(b"x"))));
    assert!(world.layers().contains(&hex(&digest(b"y"))), "one that is just being made");
}

#[test]
fn many_programs_at_once_import_the_same_layer() {
    let world = World::new();
    let image = ImageBuilder::default().files(&[("f", "x")]).build();
    let path = layout(&world, "app:1", &image);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let images = Images::open(&world.path("")).unwrap();
                images.import(&path, None).unwrap();
                assert!(images.find("app:1").unwrap().is_some());
            });
        }
    });
    assert_eq!(world.layers(), [hex(&image.diff_ids[0])]);
    world.assert_tidy();
}

#[test]
fn layer_that_is_refused_leaves_nothing() {
    let world = World::new();
    let evil = TarBuilder::default().file("good", b"x").file("../evil", b"x").finish();
    let path = layout(&world, "evil:1", &ImageBuilder::default().tar(&evil).build());
    let error = world.images.import(&path, None).unwrap_err();
    assert!(story(&error).contains("../evil"), "{error}");
    assert!(world.layers().is_empty() && world.images.list().unwrap().is_empty());
    world.assert_tidy();
}

#[test]
fn directory_that_a_layer_does_not_describe_stays_as_the_layers_below_say() {
    let world = World::new();
    let base =
        TarBuilder::default().directory("tmp/", 0o1777).directory("srv/", 0o700).directory("etc/", 0o755);
    let upper = TarBuilder::default().file("tmp/file", b"x").file("srv/www/index", b"x").file("etc/f", b"x");
    let image = ImageBuilder::default().tar(&base.finish()).tar(&upper.finish()).build();
    import(&world, "app:1", &image);
    let (found, _lease) = world.images.find("app:1").unwrap().unwrap();
    let layers = &found.root.layers;
    assert_eq!(layers.len(), 3, "one more layer, with the directories that need it");
    let mode = |path: &str| layers[0].join(path).metadata().map(|it| it.mode() & 0o7777).ok();
    assert_eq!(
        (mode("tmp"), mode("srv"), mode("etc"), mode("srv/www")),
        (Some(0o1777), Some(0o700), None, None)
    );
    // An image without such directories gets none.
    let whole = TarBuilder::default().directory("tmp/", 0o1777).file("tmp/file", b"x").finish();
    import(&world, "whole:1", &ImageBuilder::default().tar(&whole).build());
    assert_eq!(world.images.find("whole:1").unwrap().unwrap().0.root.layers.len(), 1);
}

#[test]
fn volumes_of_an_image_live_outside_only_when_they_hold_nothing() {
    let world = World::new();
    let config = serde_json::json!({"Volumes": {
        "/full": {}, "/empty": {}, "/missing": {}, "/proc/x": {}, "relative": {}, "/a/../b": {}, "/": {},
    }});
    let image = ImageBuilder::default()
        .files(&[("full/", ""), ("full/f", "x"), ("empty/", "")])
        .config(config)
        .build();
    import(&world, "app:1", &image);
    let (found, _lease) = world.images.find("app:1").unwrap().unwrap();
    assert_eq!(found.volumes, ["/empty", "/missing"].map(std::path::PathBuf::from));
}

#[test]
fn nobody_else_of_the_machine_gets_near_the_layers() {
    let world = World::new();
    let mode = world.path("").metadata().unwrap().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}: layers hold set-user-id programs");
    assert!(exists(&world.path("store.lock")) || world.images.list().unwrap().is_empty());
}
