//! Pulling from a registry that is good, slow of hearing, broken or hostile.

use std::sync::{Arc, Mutex};

use asb_runtime::image::{Error, Keyring, Login, Mirror, Progress, Registries};
use asb_testing::{Access, Built, ImageBuilder, Registry, TarBuilder};

use crate::common::{World, nobody, reference, story};

/// Two layers; the upper one has bytes that cannot be compressed.
fn example() -> Built {
    let mut state = 1u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    })
    .take(200_000)
    .collect();
    let upper = TarBuilder::default().file("noise", &noise).finish();
    ImageBuilder::default().files(&[("etc/version", "1")]).tar(&upper).build()
}

fn login(user: &str, password: &str) -> Login {
    Login { user: user.into(), password: password.into() }
}

#[tokio::test]
async fn image_is_pulled_once_and_a_tag_that_moved_again() {
    let (world, registry) = (World::new(), Registry::start(Access::Everybody));
    registry.push_index("team/app:1", &example());
    let name = registry.name("team/app:1");
    let record = world.pull(&name).await.unwrap();
    assert_eq!((record.name.as_str(), world.layers().len()), (name.as_str(), 2));
    assert_eq!(world.read(&name, "etc/version").as_deref(), Some("1"));
    let place = registry.name("team/app");
    assert_eq!(record.image_id(), format!("{place}@{}", asb_testing::digest(&example().index())));

    registry.requests();
    world.pull(&name).await.unwrap();
    assert_eq!(registry.requests(), ["team/app/manifests/1"], "nothing but the manifest is asked for");

    // Moved to an image that shares the lower layer.
    let next = ImageBuilder::default().files(&[("etc/version", "1")]).files(&[("new", "n")]).build();
    registry.push("team/app:1", &next);
    world.pull(&name).await.unwrap();
    let blobs = registry.requests().into_iter().filter(|request| request.contains("/blobs/")).count();
    assert_eq!(blobs, 2, "the config and one layer");
    assert_eq!(world.layers().len(), 3);
    world.images.prune(nobody).unwrap();
    assert_eq!(world.layers().len(), 2, "what the tag pointed to before is gone");
    world.assert_tidy();
}

#[tokio::test]
async fn digest_pins_an_image_whatever_the_tag_does() {
    let (world, registry) = (World::new(), Registry::start(Access::Everybody));
    let image = example();
    registry.push("app:1", &image);
    let pinned = registry.name(&format!("app@{}", image.digest()));
    world.pull(&pinned).await.unwrap();
    registry.push("app:1", &ImageBuilder::default().files(&[("other", "")]).build());
    assert_eq!(world.read(&pinned, "etc/version").as_deref(), Some("1"));

    let unknown = registry.name(&format!("app@{}", asb_testing::digest(b"none")));
    let error = world.pull(&unknown).await.unwrap_err();
    assert!(matches!(&error, Error::NotFound { message, .. } if message == "manifest unknown"), "{error:?}");
    // A registry that answers with something else for a digest is not believed.
    registry.push_manifest(&format!("evil@{}", asb_testing::digest(b"none")), b"{}");
    let other = World::new();
    registry.faults().wrong_manifests = true;
    let error = other.pull(&pinned).await.unwrap_err();
    assert!(matches!(error, Error::Digest { .. }), "{error:?}");
    other.assert_tidy();
}

#[tokio::test]
async fn image_pulled_by_tag_is_found_by_its_digest() {
    let (world, registry) = (World::new(), Registry::start(Access::Everybody));
    let image = example();
    registry.push("app:1", &image);
    world.pull(&registry.name("app:1")).await.unwrap();
    let find = |name: String| world.images.find(&name).unwrap().is_some();
    assert!(find(registry.name(&format!("app@{}", image.digest()))));
    assert!(
        !find(registry.name(&format!("other@{}", image.digest()))),
        "another repository is another image"
    );
}

#[tokio::test]
async fn registries_get_the_login_they_ask_for_and_no_other() {
    let basic = Access::Basic("me:secret".into());
    let token = Access::Token(Some("me:secret".into()));
    for access in [basic, token] {
        let (world, registry) = (World::new(), Registry::start(access));
        registry.push("app:1", &example());
        let name = registry.name("app:1");
        let host = registry.address.to_string();
        for keyring in [
            Keyring::default(),
            Keyring::new(&host, login("me", "hunter2")),
            Keyring::new("other.test", login("me", "secret")),
        ] {
            let error = world.pull_as(&name, &keyring).await.unwrap_err();
            assert!(matches!(error, Error::Denied { .. }), "{error:?}");
            assert!(error.hint().unwrap().contains(&host) && !format!("{error:?}").contains("hunter2"));
        }
        world.pull_as(&name, &Keyring::new(&host, login("me", "secret"))).await.unwrap();
    }
    let (world, registry) = (World::new(), Registry::start(Access::Token(None)));
    registry.push("app:1", &example());
    world.pull(&registry.name("app:1")).await.unwrap();
}

#[tokio::test]
async fn download_that_is_cut_goes_on_where_it_ended() {
    let (world, registry) = (World::new(), Registry::start(Access::Everybody));
    registry.push("app:1", &example());
    registry.faults().cut = Some((50_000, 3));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = seen.clone();
    let progress = move |progress| noted.lock().unwrap().push(progress);
    world.images.pull(&reference(&registry.name("app:1")), &Keyring::default(), progress).await.unwrap();
    let ranges: Vec<_> = registry.requests().into_iter().filter(|it| it.contains("bytes=")).collect();
    assert_eq!(ranges.len(), 3, "{ranges:?}");
    assert!(ranges[0].ends_with("bytes=50000-") && ranges[2].ends_with("bytes=150000-"), "{ranges:?}");
    let seen = seen.lock().unwrap();
    let total: u64 =
        seen.iter().map(|it| if let Progress::Layer { bytes, .. } = it { *bytes } else { 0 }).sum();
    assert_eq!(total, example().layers.iter().map(|layer| layer.len() as u64).sum::<u64>());
    assert_eq!(seen.iter().filter(|it| matches!(it, Progress::Done { .. })).count(), 2);
    world.assert_tidy();
}

#[tokio::test]
async fn registry_without_ranges_sends_everything_again() {
    let (world, registry) = (World::new(), Registry::start(Access::Everybody));
    registry.push("app:1", &example());
    *registry.faults() =
        asb_testing::Faulty { cut: Some((50_000, 2)), no_ranges: true, ..Default::default() };
    world.pull(&registry.name("app:1")).await.unwrap();
    assert_eq!(world.layers().len(), 2);
    world.assert_tidy();
}

#[tokio::test]
async fn next_pull_goes_on_with_what_the_last_one_got() {
    let (world, registry) = (World::new(), Registry::start(Access::Everybody));
    registry.push("app:1", &example());
    registry.faults().cut = Some((120_000, 1));
    let (name, downloads) = (registry.name("app:1"), world.path("downloads"));
    let begun = async {
        let part = || {
            std::fs::read_dir(&downloads)
                .unwrap()
                .flatten()
                .any(|it| it.metadata().is_ok_and(|it| it.len() >= 120_000))
        };
        while !part() {
            tokio::task::yield_now().await;
        }
    };
    // Dropped as soon as some of the blob is here, as when the engine stops.
    tokio::select! {
        biased;
        () = begun => {}
        done = world.pull(&name) => panic!("it must not finish before it is cut: {done:?}"),
    }
    registry.requests();
    world.pull(&name).await.unwrap();
    let requests = registry.requests();
    assert!(requests.iter().any(|request| request.ends_with("bytes=120000-")), "{requests:?}");
    world.assert_tidy();
}

#[tokio::test]
async fn part_of_a_download_that_is_rotten_is_fetched_anew() {
    let (world, registry) = (World::new(), Registry::start(Access::Everybody));
    let image = example();
    registry.push("app:1", &image);
    let digest = asb_testing::digest(&image.layers[1]);
    std::fs::write(world.path("downloads").join(crate::common::hex(&digest)), vec![7; 60_000]).unwrap();
    world.pull(&registry.name("app:1")).await.unwrap();
    world.assert_tidy();
}

#[tokio::test]
async fn registry_that_fails_for_a_moment_is_asked_again() {
    let (world, registry) = (World::new(), Registry::start(Access::Everybody));
    registry.push("app:1", &example());
    registry.faults().failing = Some((503, 3));
    world.pull(&registry.name("app:1")).await.unwrap();
    registry.faults().failing = Some((500, 1000));
    let error = World::new().pull(&registry.name("app:1")).await.unwrap_err();
    assert!(matches!(error, Error::Answer { status: 500, .. }), "{error:?}");
}

#[tokio::test]
async fn wrong_bytes_are_never_unpacked_and_never_kept() {
    let (world, registry) = (World::new(), Registry::start(Access::Everybody));
    registry.push("app:1", &example());
    registry.faults().wrong_blobs = true;
    let error = world.pull(&registry.name("app:1")).await.unwrap_err();
    assert!(matches!(error, Error::Digest { .. }), "{error:?}");
    *registry.faults() = asb_testing::Faulty { long_blobs: true, ..Default::default() };
    let error = world.pull(&registry.name("app:1")).await.unwrap_err();
    assert!(matches!(error, Error::Digest { .. } | Error::Malformed { .. }), "{error:?}");
    assert!(world.layers().is_empty() && world.images.list().unwrap().is_empty());
    // The layer alone is wrong: the config must get through for that.
    let lying = ImageBuilder::default().blob(b"garbage".to_vec(), asb_testing::digest(b"x")).build();
    registry.push("lie:1", &lying);
    *registry.faults() = Default::default();
    assert!(world.pull(&registry.name("lie:1")).await.is_err());
    assert!(world.layers().is_empty());
    world.assert_tidy();
}

#[tokio::test]
async fn hostile_registry_cannot_fill_the_memory_or_lead_elsewhere() {
    let (world, registry) = (World::new(), Registry::start(Access::Everybody));
    registry.push("app:1", &example());
    registry.faults().endless_manifests = true;
    let error = world.pull(&registry.name("app:1")).await.unwrap_err();
    assert!(story(&error).contains("more than 4194304 bytes"), "{error}");
    for target in ["file:///etc/passwd", "gopher://x/", "http://127.0.0.1:1/loop"] {
        *registry.faults() = asb_testing::Faulty { redirect: Some(target.into()), ..Default::default() };
        let error = world.pull(&registry.name("app:1")).await.unwrap_err();
        assert!(matches!(error, Error::Transfer { .. }), "{error:?}");
    }
    let circle = format!("http://{}/v2/app/blobs/x", registry.address);
    *registry.faults() = asb_testing::Faulty { redirect: Some(circle), ..Default::default() };
    let error = world.pull(&registry.name("app:1")).await.unwrap_err();
    assert!(matches!(error, Error::Transfer { .. } | Error::NotFound { .. }), "{error:?}");
    assert!(world.layers().is_empty());
    world.assert_tidy();
}

#[tokio::test]
async fn mirror_is_asked_first_and_the_registry_when_it_fails() {
    let (registry, mirror) = (Registry::start(Access::Everybody), Registry::start(Access::Everybody));
    registry.push("app:1", &example());
    mirror.push("app:1", &example());
    let host = registry.address.to_string();
    let text = format!("{host}=http://{}", mirror.address);
    let registries = || Registries { mirrors: vec![Mirror::parse(&text).unwrap()], ..Registries::default() };
    let world = World::with(registries());
    let name = registry.name("app:1");
    world.pull(&name).await.unwrap();
    assert!(registry.requests().is_empty() && !mirror.requests().is_empty());
    assert!(world.images.find(&name).unwrap().is_some(), "it has the name that was asked for");

    for broken in [
        asb_testing::Faulty { failing: Some((500, 1000)), ..Default::default() },
        asb_testing::Faulty { wrong_blobs: true, ..Default::default() },
    ] {
        *mirror.faults() = broken;
        World::with(registries()).pull(&name).await.unwrap();
        assert!(!registry.requests().is_empty());
    }
}

#[tokio::test]
async fn names_without_a_registry_need_a_default_one() {
    let registry = Registry::start(Access::Everybody);
    registry.push("team/app:1", &example());
    let error = World::new().pull("app:1").await.unwrap_err();
    assert!(
        matches!(error, Error::NoRegistry { .. }) && error.hint().unwrap().contains("--default-registry")
    );
    let default_registry = Some(format!("{}/team", registry.address));
    let world = World::with(Registries { default_registry, ..Registries::default() });
    world.pull("app:1").await.unwrap();
    assert!(world.images.find("app:1").unwrap().is_some());
    assert_eq!(world.images.list().unwrap()[0].name, registry.name("team/app:1"));
}

#[tokio::test]
async fn many_at_once_fetch_every_layer_once() {
    let (world, registry) = (World::new(), Registry::start(Access::Everybody));
    registry.push("app:1", &example());
    let name = registry.name("app:1");
    let one = || async {
        let _turn = world.images.turn(&reference(&name)).await;
        world.pull(&name).await.unwrap();
    };
    futures::future::join_all((0..10).map(|_| one())).await;
    let requests = registry.requests();
    let blobs: Vec<_> = requests.iter().filter(|request| request.contains("/blobs/")).collect();
    assert_eq!(blobs.len(), 3, "config and two layers: {blobs:?}");
    world.assert_tidy();
}

#[tokio::test]
async fn registry_that_nobody_answers_for_is_named_with_a_hint() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = World::new().pull(&format!("127.0.0.1:{port}/app:1")).await.unwrap_err();
    assert!(matches!(error, Error::Transfer { .. }), "{error:?}");
    assert!(error.hint().unwrap().contains(&port.to_string()));
}

#[tokio::test]
async fn registry_with_tls_must_be_one_that_is_trusted() {
    let (registry, certificate) = Registry::start_tls(Access::Everybody);
    registry.push("app:1", &example());
    // On loopback plain HTTP is usual: a mirror's URL says otherwise.
    let mirrors = vec![Mirror::parse(&format!("registry.test=https://{}", registry.address)).unwrap()];
    let known = asb_runtime::image::authorities(certificate.as_bytes()).unwrap();
    let trusting = Registries { mirrors: mirrors.clone(), authorities: known, ..Registries::default() };
    World::with(trusting).pull("registry.test/app:1").await.unwrap();
    registry.requests();
    let error = World::with(Registries { mirrors, ..Registries::default() })
        .pull("registry.test/app:1")
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Transfer { .. }), "{error:?}");
    assert!(registry.requests().is_empty(), "nothing is said to a stranger");
    assert!(asb_runtime::image::authorities(b"no certificate").is_err());
}

/// The registry of Debian, with its files laid out by hand.
#[tokio::test]
#[ignore = "needs docker-registry on PATH"]
async fn packaged_registry_is_pulled_from() {
    let directory = tempfile::tempdir().unwrap();
    let image = example();
    let (root, hex) = (directory.path().join("docker/registry/v2"), crate::common::hex);
    let write = |path: String, bytes: &[u8]| {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    let manifest = (image.digest(), image.manifest.clone());
    for (digest, bytes) in image.blobs().into_iter().chain([manifest]) {
        let hex = hex(&digest);
        write(format!("blobs/sha256/{}/{hex}/data", &hex[..2]), &bytes);
        write(format!("repositories/team/app/_layers/sha256/{hex}/link"), digest.as_bytes());
    }
    let digest = image.digest();
    for place in [format!("revisions/sha256/{}", hex(&digest)), "tags/1/current".to_owned()] {
        write(format!("repositories/team/app/_manifests/{place}/link"), digest.as_bytes());
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = format!(
        "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n",
        directory.path().display()
    );
    let path = directory.path().join("config.yml");
    std::fs::write(&path, config).unwrap();
    let mut server = std::process::Command::new("docker-registry")
        .args(["serve", path.to_str().unwrap()])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let world = World::with(Registries::default());
    let name = format!("127.0.0.1:{port}/team/app:1");
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let pulled = loop {
        match world.pull(&name).await {
            Err(Error::Transfer { .. }) if std::time::Instant::now() < until => {}
            done => break done,
        }
    };
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(pulled.unwrap().manifest.unwrap().to_string(), digest);
    assert_eq!(world.read(&name, "etc/version").as_deref(), Some("1"));
    world.assert_tidy();
}
