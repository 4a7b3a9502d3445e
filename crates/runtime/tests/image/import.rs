//! Archives and directories as programs write them, and as attackers would.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use asb_runtime::image::{Config, Recipe};
use asb_testing::{Built, ImageBuilder, TarBuilder, digest};

use crate::common::{World, hex, reference, story};

fn example() -> (Built, Vec<Vec<u8>>) {
    let tars = vec![
        TarBuilder::default().file("etc/version", b"1").file("old", b"x").finish(),
        TarBuilder::default().file("etc/version", b"2").file(".wh.old", b"").finish(),
    ];
    let config = serde_json::json!({"Cmd": ["run"], "Env": ["A=b"]});
    let image = tars.iter().fold(ImageBuilder::default(), |image, tar| image.tar(tar)).config(config).build();
    (image, tars)
}

fn archive(image: &Built, name: Option<&str>) -> Vec<u8> {
    let files = image.layout(name);
    files.iter().fold(TarBuilder::default(), |tar, (path, bytes)| tar.file(path, bytes)).finish()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn every_form_of_an_image_gives_the_same_one() {
    let (image, tars) = example();
    let forms: [(&str, Vec<u8>); 4] = [
        ("oci.tar", archive(&image, Some("registry.test/app:1"))),
        ("oci.tar.gz", gzip(&archive(&image, Some("registry.test/app:1")))),
        ("docker.tar", image.docker_save("registry.test/app:1", &tars)),
        ("docker.tar.gz", gzip(&image.docker_save("registry.test/app:1", &tars))),
    ];
    for (name, bytes) in forms {
        let world = World::new();
        let records = world.images.import(&world.write(name, &bytes), None).unwrap();
        assert_eq!(records.len(), 1);
        assert_eq!(
            (records[0].name.as_str(), records[0].id.to_string()),
            ("registry.test/app:1", digest(&image.config))
        );
        assert_eq!(world.layers().len(), 2);
        assert_eq!(world.read("registry.test/app:1", "etc/version").as_deref(), Some("2"), "{name}");
        assert_eq!(records[0].config.cmd, ["run"]);
        world.assert_tidy();
    }
}

#[test]
fn name_can_be_given_and_must_be_when_the_archive_has_none() {
    let world = World::new();
    let path = world.write("a.tar", &archive(&example().0, None));
    let error = world.images.import(&path, None).unwrap_err();
    assert!(story(&error).contains("give it a name"), "{error}");
    let records = world.images.import(&path, Some(&reference("mine"))).unwrap();
    assert_eq!(records[0].name, "mine:latest");
    assert!(world.images.find("mine").unwrap().is_some());
}

#[test]
fn anything_that_is_not_what_its_digest_says_is_refused() {
    let (image, tars) = example();
    let path = |digest: &str| format!("blobs/sha256/{}", hex(digest));
    let cases = [
        (path(&image.digest()), "manifest"),
        (path(&digest(&image.config)), "config"),
        (path(&digest(&image.layers[1])), "layer"),
    ];
    for (broken, what) in cases {
        let mut files = image.layout(Some("app:1"));
        // Valid JSON and valid gzip, only not the ones that were promised.
        let replacement = match what {
            "layer" => gzip(&TarBuilder::default().file("evil", b"x").finish()),
            _ => [files[&broken].as_slice(), b" "].concat(),
        };
        files.insert(broken, replacement);
        let bytes =
            files.iter().fold(TarBuilder::default(), |tar, (path, bytes)| tar.file(path, bytes)).finish();
        let world = World::new();
        let error = world.images.import(&world.write("a.tar", &bytes), None).unwrap_err();
        assert!(story(&error).contains("has digest sha256:") && story(&error).contains(what), "{error}");
        assert!(world.images.list().unwrap().is_empty());
        world.assert_tidy();
    }
    // A layer that is the promised blob but unpacks to something else.
    let lying = ImageBuilder::default().blob(gzip(&tars[0]), digest(b"something else")).build();
    let world = World::new();
    let error =
        world.images.import(&world.write("a.tar", &archive(&lying, Some("app:1"))), None).unwrap_err();
    assert!(story(&error).contains("unpacked layer"), "{error}");
    assert!(world.layers().is_empty());
}

#[test]
fn layout_cannot_borrow_files_of_the_machine() {
    let world = World::new();
    let (image, _) = example();
    for (path, bytes) in image.layout(Some("app:1")) {
        world.write(&format!("layout/{path}"), &bytes);
    }
    let secret = world.write("secret", &image.config);
    let config = world.directory.path().join(format!("layout/blobs/sha256/{}", hex(&digest(&image.config))));
    std::fs::remove_file(&config).unwrap();
    std::os::unix::fs::symlink(secret, &config).unwrap();
    let error = world.images.import(&world.directory.path().join("layout"), None).unwrap_err();
    assert!(story(&error).contains("no file"), "{error}");
    // Nor can a docker archive name one.
    let manifest = format!(
        r#"[{{"Config": "{}.json", "RepoTags": ["a:1"], "Layers": ["../../etc/shadow"]}}]"#,
        hex(&digest(&image.config))
    );
    let tar = TarBuilder::default().file("manifest.json", manifest.as_bytes());
    let tar = tar.file(&format!("{}.json", hex(&digest(&image.config))), &image.config).finish();
    let error = world.images.import(&world.write("d.tar", &tar), None).unwrap_err();
    assert!(!story(&error).is_empty() && world.layers().is_empty());
}

#[test]
fn what_is_no_image_is_refused_with_a_reason() {
    let world = World::new();
    let cases: [(&str, Vec<u8>, &str); 4] = [
        ("empty.tar", TarBuilder::default().file("readme", b"x").finish(), "neither an index.json"),
        ("text", b"hello, this is no archive".repeat(100), "checksum"),
        ("short", b"x".to_vec(), "header"),
        ("cut.tar", archive(&example().0, Some("a:1"))[..2000].to_vec(), "ends"),
    ];
    for (name, bytes, words) in cases {
        let error = world.images.import(&world.write(name, &bytes), None).unwrap_err();
        assert!(story(&error).contains(words), "{name}: {}", story(&error));
    }
    let missing = world.images.import(&world.directory.path().join("none"), None).unwrap_err();
    assert!(story(&missing).contains("No such file"), "{}", story(&missing));
    world.assert_tidy();
}

#[test]
fn directory_becomes_an_image_with_owners_links_and_attributes() {
    let world = World::new();
    let root = world.directory.path().join("root");
    world.write("root/bin/su", b"program");
    std::fs::set_permissions(root.join("bin/su"), PermissionsExt::from_mode(0o4755)).unwrap();
    std::fs::hard_link(root.join("bin/su"), root.join("bin/hard")).unwrap();
    std::os::unix::fs::symlink("/bin/su", root.join("bin/link")).unwrap();
    std::os::unix::fs::chown(root.join("bin"), Some(5), Some(6)).unwrap();
    rustix::fs::setxattr(root.join("bin/su"), "user.note", b"kept", rustix::fs::XattrFlags::empty()).unwrap();
    let deep = format!("root/{}/{}", "d".repeat(200), "e".repeat(200));
    world.write(&deep, b"deep");
    let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();

    let config = Config { cmd: vec!["su".into()], ..Config::default() };
    let recipe = Recipe { config };
    let record = world.images.from_directory(&root, &reference("app:1"), &recipe).unwrap();
    let again = world.images.from_directory(&root, &reference("app:2"), &recipe).unwrap();
    assert_eq!(
        (&record.id, &record.layers),
        (&again.id, &again.layers),
        "the same files give the same image"
    );
    let (image, lease) = world.images.find("app:1").unwrap().unwrap();
    let layer = &image.root.layers[0];
    let su = layer.join("bin/su").metadata().unwrap();
    assert_eq!((su.mode() & 0o7777, su.nlink()), (0o4755, 2));
    assert_eq!(std::fs::read_link(layer.join("bin/link")).unwrap().to_str(), Some("/bin/su"));
    assert_eq!(layer.join("bin").metadata().unwrap().uid(), 5);
    let mut note = [0u8; 16];
    assert_eq!(rustix::fs::getxattr(layer.join("bin/su"), "user.note", &mut note[..]), Ok(4));
    assert_eq!(std::fs::read(layer.join(deep.strip_prefix("root/").unwrap())).unwrap(), b"deep");
    assert!(!layer.join("socket").exists());
    drop(lease);
    world.assert_tidy();
}

#[test]
fn directory_with_names_that_mean_deletions_is_refused() {
    let world = World::new();
    world.write("root/etc/.wh.passwd", b"");
    let error = world
        .images
        .from_directory(&world.directory.path().join("root"), &reference("a"), &Recipe::default())
        .unwrap_err();
    assert!(story(&error).contains(".wh.passwd"), "{}", story(&error));
    assert!(world.layers().is_empty(), "half a directory is no image");
    world.assert_tidy();
}

#[test]
fn directory_that_holds_the_store_itself_does_not_swallow_it() {
    let world = World::new();
    world.write("file", b"x");
    let record =
        world.images.from_directory(world.directory.path(), &reference("a"), &Recipe::default()).unwrap();
    let (image, _lease) = world.images.find("a").unwrap().unwrap();
    assert!(image.root.layers[0].join("file").exists() && !image.root.layers[0].join("images").exists());
    assert_eq!(record.size, 1);
}
