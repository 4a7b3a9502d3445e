//! Sandboxes on images of the test's own: layers as overlayfs really shows them, with ids mapped.

use asb_runtime::image::{Keyring, Reference};
use asb_runtime::{Exit, Images, Sandbox};
use asb_testing::{Access, Built, ImageBuilder, Registry, TarBuilder};
use tar::EntryType;

use crate::common::{Output, World, run, shell};

/// A static shell with its programs, and a few things for upper layers to hide or replace.
fn base() -> ImageBuilder {
    let busybox = std::fs::read("/bin/busybox").or_else(|_| std::fs::read("/usr/bin/busybox"));
    let busybox = busybox.expect("these tests need busybox-static");
    let mut tar = TarBuilder::default()
        .directory("bin/", 0o755)
        .entry(EntryType::Regular, "bin/busybox", 0o755, "", &busybox)
        .directory("tmp/", 0o1777)
        .directory("etc/", 0o755)
        .file("etc/passwd", b"root:x:0:0::/:\nweb:x:33:34::/srv:\n")
        .file("etc/gone", b"x")
        .directory("dir/", 0o755)
        .file("dir/old", b"x")
        .file("file", b"old");
    for name in ["sh", "cat", "ls", "stat", "id", "touch", "rm", "chmod", "find"] {
        tar = tar.entry(EntryType::Symlink, &format!("bin/{name}"), 0o777, "busybox", b"");
    }
    ImageBuilder::default().tar(&tar.finish())
}

fn upper() -> Vec<u8> {
    TarBuilder::default()
        .file("etc/.wh.gone", b"")
        .directory("dir/", 0o755)
        .file("dir/.wh..wh..opq", b"")
        .file("dir/new", b"x")
        .file("file", b"new")
        .file("tmp/made", b"x")
        .entry(EntryType::Regular, "bin/root", 0o4755, "", b"#!/bin/sh\n")
        .finish()
}

struct Pulled {
    world: World,
    images: Images,
    _registry: Registry,
    name: String,
}

impl Pulled {
    async fn new(image: &Built) -> Self {
        let (world, registry) = (World::new(), Registry::start(Access::Everybody));
        registry.push("app:1", image);
        let images = Images::open(&world.directory.path().join("images")).expect("opens");
        let name = registry.name("app:1");
        let reference = Reference::parse(&name).expect("valid");
        images.pull(&reference, &Keyring::default(), |_| {}).await.expect("pulled");
        Self { world, images, _registry: registry, name }
    }

    async fn start(&self) -> Sandbox {
        let (image, lease) = self.images.find(&self.name).expect("readable").expect("there");
        let mut spec = self.world.spec(&[]);
        spec.process.env = image.config.variables();
        spec.process.cwd = image.config.directory();
        spec.root = image.root;
        let sandbox = self.world.native.start(&spec).await.expect("starts");
        drop(lease);
        sandbox
    }
}

async fn said(sandbox: &Sandbox, script: &str) -> String {
    let Output { exit, stdout, stderr } = run(sandbox, &shell(script)).await;
    assert_eq!(exit, Exit::Code(0), "{script}: {stdout}{stderr}");
    stdout
}

#[tokio::test]
async fn layers_are_shown_as_the_image_means_them() {
    let pulled = Pulled::new(&base().tar(&upper()).build()).await;
    let sandbox = pulled.start().await;
    assert_eq!(
        said(&sandbox, "cat /file; ls /dir; ls /etc").await,
        "newnew\ngroup_is_not_here\n".replace("group_is_not_here", "hostname\nhosts\npasswd\nresolv.conf")
    );
    // `tmp` is in the upper layer only by a file: it stays world-writable and root's.
    assert_eq!(said(&sandbox, "stat -c '%a %u %g' /tmp /tmp/made /").await, "1777 0 0\n644 0 0\n755 0 0\n");
    // Everything can be written, replaced and removed; the layers below stay as they are.
    said(
        &sandbox,
        "echo changed > /file; rm /dir/new /tmp/made; rm -r /dir; touch /etc/passwd; chmod 700 /etc",
    )
    .await;
    let second = pulled.start().await;
    assert_eq!(said(&second, "cat /file; ls /dir; stat -c %a /etc").await, "newnew\n755\n");
    pulled.world.finish().await;
}

#[tokio::test]
async fn set_user_id_programs_of_an_image_give_no_rights() {
    let pulled = Pulled::new(&base().tar(&upper()).build()).await;
    let (image, _lease) = pulled.images.find(&pulled.name).expect("readable").expect("there");
    let mut spec = pulled.world.spec(&[]);
    spec.root = image.root;
    spec.process.env = image.config.variables();
    spec.process.cwd = "/".into();
    let web = image.users.find("web").expect("in the image");
    (spec.process.uid, spec.process.gid, spec.process.groups) = (web.uid, web.gid, vec![7, 8]);
    let sandbox = pulled.world.native.start(&spec).await.expect("starts");
    assert_eq!(said(&sandbox, "stat -c %a /bin/root").await, "4755\n", "the bit is kept");
    assert_eq!(said(&sandbox, "id -u; id -g; id -G").await, "33\n34\n34 7 8\n");
    let status = said(&sandbox, "cat /proc/self/status").await;
    assert!(status.contains("NoNewPrivs:\t1") && status.contains("CapEff:\t0000000000000000"), "{status}");
    let mounts = said(&sandbox, "cat /proc/mounts").await;
    let root = mounts.lines().find(|line| line.contains(" / ")).expect("a root");
    assert!(root.contains("nosuid") && root.contains("nodev"), "{root}");
    pulled.world.finish().await;
}

#[tokio::test]
async fn links_of_an_image_lead_nowhere_outside() {
    // What a sandbox needs at these places is mounted inside, whatever links the image has there.
    let evil = TarBuilder::default()
        .entry(EntryType::Symlink, "run", 0o777, "/../../../../var", b"")
        .entry(EntryType::Symlink, "proc", 0o777, "/../../../../tmp", b"")
        .entry(EntryType::Symlink, "etc/hosts", 0o777, "/../../../../etc/shadow", b"")
        .entry(EntryType::Symlink, ".asb", 0o777, "/etc", b"")
        .finish();
    let pulled = Pulled::new(&base().tar(&evil).build()).await;
    let (image, _lease) = pulled.images.find(&pulled.name).expect("readable").expect("there");
    let mut spec = pulled.world.spec(&[]);
    spec.root = image.root;
    spec.process.env = image.config.variables();
    spec.process.cwd = "/".into();
    // Refused or contained: either way the machine is as it was.
    if let Ok(sandbox) = pulled.world.native.start(&spec).await {
        let output = run(&sandbox, &shell("cat /etc/hosts /etc/shadow")).await;
        assert!(
            !output.stdout.contains("root:*")
                && !output.stdout.contains("root:!")
                && !output.stdout.contains("root:$"),
            "{output:?}"
        );
    }
    // Its time would not tell: others add users meanwhile.
    let shadow = std::fs::read_to_string("/etc/shadow").expect("readable");
    assert!(!shadow.contains("localhost") && shadow.contains("root:"), "hosts were written to it");
    pulled.world.finish().await;
}
