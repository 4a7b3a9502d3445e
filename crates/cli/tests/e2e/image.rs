//! Images as users meet them: made from a directory, pulled by a Pod from a registry with a login, listed, removed.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use asb_testing::{Access, Built, ImageBuilder, Registry};
use base64::Engine as _;
use serde_json::{Value, json};

use crate::engine::{Engine, asb_in, assert_nothing_left, eventually, stdout, text};

/// A root directory with a static shell.
pub fn root_directory(path: &Path) {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
    for directory in ["bin", "etc", "tmp", "srv"] {
        std::fs::create_dir_all(path.join(directory)).unwrap();
    }
    std::fs::copy(busybox.expect("these tests need busybox-static"), path.join("bin/busybox")).unwrap();
    for name in ["sh", "cat", "ls", "id", "echo", "env", "pwd", "sleep", "touch", "trap", "mount", "stat"] {
        std::os::unix::fs::symlink("busybox", path.join("bin").join(name)).unwrap();
    }
    std::fs::write(path.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nweb:x:33:34::/srv:/bin/sh\n")
        .unwrap();
    std::fs::write(path.join("etc/group"), "log:x:4:web\n").unwrap();
}

/// The same directory as an image for a registry.
fn image(config: Value) -> Built {
    let root = tempfile::tempdir().unwrap();
    root_directory(root.path());
    let tar = Command::new("tar")
        .args(["--create", "--numeric-owner", "--directory"])
        .arg(root.path())
        .arg(".")
        .output()
        .unwrap();
    assert!(tar.status.success());
    ImageBuilder::default().tar(&tar.stdout).config(config).build()
}

fn pod(name: &str, spec: &Value) -> String {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}).to_string()
}

fn status(engine: &Engine, name: &str) -> Value {
    let got = engine.kubectl(&["get", "pod", name, "-o", "json"]);
    serde_json::from_slice::<Value>(&got.stdout).map_or(Value::Null, |mut pod| pod["status"].take())
}

fn waiting(engine: &Engine, name: &str) -> String {
    let status = status(engine, name);
    status["containerStatuses"][0]["state"]["waiting"]["reason"].as_str().unwrap_or_default().to_owned()
}

/// Names of what the store holds.
fn stored(engine: &Engine, what: &str) -> Vec<String> {
    let entries = std::fs::read_dir(engine.data_dir.path().join("images").join(what)).unwrap();
    entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn pod_pulls_a_private_image_runs_it_and_leaves_nothing() {
    let engine = Engine::start();
    let registry = Registry::start(Access::Token(Some("me:secret".into())));
    let config = json!({
        "Entrypoint": ["/bin/sh", "-c"], "Cmd": ["id; echo $GREETING in $PWD; exec sleep 1000"],
        "Env": ["GREETING=hello", "PATH=/bin"], "WorkingDir": "/srv", "User": "web", "Volumes": {"/data": {}},
    });
    registry.push_index("team/app:1", &image(config));
    let name = registry.name("team/app:1");
    let login = base64::engine::general_purpose::STANDARD.encode("me:secret");
    let docker = json!({"auths": {registry.address.to_string(): {"auth": login}}}).to_string();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"},
        "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": docker},
    });
    stdout(&engine.kubectl_apply(&secret.to_string()));
    let spec = json!({
        "imagePullSecrets": [{"name": "login"}], "restartPolicy": "Never",
        "containers": [{"name": "main", "image": name}],
    });
    stdout(&engine.kubectl_apply(&pod("private", &spec)));
    eventually("the Pod prints what it should", || {
        text(&engine.kubectl(&["logs", "private"])).contains("hello")
    });
    let logs = stdout(&engine.kubectl(&["logs", "private"]));
    assert_eq!(logs, "uid=33(web) gid=34 groups=4(log)\nhello in /srv\n");
    let volume = stdout(&engine.kubectl(&[
        "exec",
        "private",
        "--",
        "/bin/sh",
        "-c",
        "touch /data/x && cat /proc/mounts",
    ]));
    assert!(
        volume.lines().any(|line| line.contains(" /data ")),
        "the image's volume is outside the root: {volume}"
    );

    let container = &status(&engine, "private")["containerStatuses"][0];
    assert_eq!(container["image"], json!(name));
    let id = container["imageID"].as_str().unwrap();
    assert!(id.starts_with(&registry.name("team/app@sha256:")), "{id}");
    eventually("the pull is told", || {
        let told = text(&engine.kubectl(&["describe", "pod", "private"]));
        told.contains(&format!("Pulling image \"{name}\""))
    });
    eventually("the end of the pull is told, with its size", || {
        let told = text(&engine.kubectl(&["describe", "pod", "private"]));
        told.contains("Successfully pulled image") && told.contains("Image size: ")
    });
    let used = engine.asb(&["image", "rm", &name]);
    assert!(!used.status.success() && text(&used).contains("used by private"), "{}", text(&used));

    stdout(&engine.kubectl(&["delete", "pod", "private", "--grace-period", "1"]));
    assert_nothing_left(engine.data_dir.path());
    stdout(&engine.asb(&["image", "rm", &name]));
    for what in ["layers", "names", "tmp", "leases", "downloads"] {
        assert_eq!(stored(&engine, what), Vec::<String>::new(), "left in {what}");
    }
    engine.stop();
}

#[test]
fn kubelet_reasons_tell_why_there_is_no_image() {
    let engine = Engine::start();
    let registry = Registry::start(Access::Everybody);
    let name = registry.name("late:1");
    let of = |image: &str, policy: &str| {
        json!({"restartPolicy": "Never", "containers": [{
            "name": "main", "image": image, "imagePullPolicy": policy, "command": ["/bin/echo", "here at last"],
        }]})
    };
    for (pod_name, image, policy) in [
        ("late", name.as_str(), "IfNotPresent"),
        ("never", name.as_str(), "Never"),
        ("wrong", "UPPER/case", "Always"),
    ] {
        stdout(&engine.kubectl_apply(&pod(pod_name, &of(image, policy))));
    }
    eventually("ErrImagePull", || waiting(&engine, "late") == "ErrImagePull");
    eventually("ImagePullBackOff", || waiting(&engine, "late") == "ImagePullBackOff");
    // The next try will find it.
    registry.push("late:1", &image(json!({})));
    eventually("it is told why", || {
        let told = text(&engine.kubectl(&["describe", "pod", "late"]));
        told.contains("Back-off pulling image") && told.contains("manifest unknown")
    });
    eventually("InvalidImageName", || waiting(&engine, "wrong") == "InvalidImageName");
    eventually("ErrImageNeverPull", || waiting(&engine, "never") == "ErrImageNeverPull");
    eventually("it starts once the image is there", || {
        text(&engine.kubectl(&["logs", "late"])).contains("here at last")
    });
    for pod_name in ["late", "never", "wrong"] {
        stdout(&engine.kubectl(&["delete", "pod", pod_name, "--grace-period", "0", "--force"]));
    }
    engine.stop();
}

#[test]
fn changed_image_restarts_the_container_with_it_and_the_status_names_what_runs() {
    let engine = Engine::start();
    let registry = Registry::start(Access::Everybody);
    for version in ["1", "2"] {
        let env = format!("VERSION={version}");
        let main = "echo this is $VERSION; trap 'exit 0' TERM; while :; do sleep 0.05; done";
        let config = json!({"Entrypoint": ["/bin/sh", "-c", main], "Env": [env, "PATH=/bin"]});
        registry.push(&format!("app:{version}"), &image(config));
    }
    let [one, two, missing] = ["app:1", "app:2", "app:3"].map(|name| registry.name(name));
    // Started again whatever the policy: as with the kubelet, because it is another container now.
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "main", "image": one}]});
    stdout(&engine.kubectl_apply(&pod("app", &spec)));
    let says = |what: &str| text(&engine.kubectl(&["logs", "app"])).contains(what);
    eventually("the first runs", || says("this is 1"));
    let set = |image: &str| stdout(&engine.kubectl(&["set", "image", "pod/app", &format!("main={image}")]));
    let main = || status(&engine, "app")["containerStatuses"][0].clone();
    set(&two);
    eventually("the second runs", || says("this is 2"));
    eventually("the status says so", || main()["image"] == json!(two) && main()["ready"] == true);
    assert_eq!((&main()["restartCount"], &status(&engine, "app")["phase"]), (&json!(1), &json!("Running")));
    let id = main()["imageID"].clone();

    set(&missing);
    eventually("there is no third", || waiting(&engine, "app") == "ImagePullBackOff");
    assert_eq!((&main()["image"], &main()["imageID"], &main()["ready"]), (&json!(two), &id, &json!(false)));
    assert_eq!(main()["lastState"]["terminated"]["exitCode"], 0);
    // The next try does not wait for the pause that the missing one has earned.
    set(&one);
    eventually("the first runs again", || says("this is 1"));
    eventually("the status says so too", || main()["image"] == json!(one));
    let told = "Container main definition changed, will be restarted";
    eventually("so do events", || text(&engine.kubectl(&["describe", "pod", "app"])).contains(told));
    stdout(&engine.kubectl(&["delete", "pod", "app", "--grace-period", "1"]));
    engine.stop();
}

#[test]
fn pod_that_is_deleted_while_it_pulls_goes_at_once() {
    let engine = Engine::start();
    let registry = Registry::start(Access::Everybody);
    registry.push("app:1", &image(json!({})));
    // Every connection ends after some bytes, again and again, with a pause before each try.
    registry.faults().cut = Some((1000, 1_000_000));
    let spec = json!({"containers": [{"name": "main", "image": registry.name("app:1")}]});
    stdout(&engine.kubectl_apply(&pod("slow", &spec)));
    eventually("the pull is under way", || !stored(&engine, "downloads").is_empty());
    stdout(&engine.kubectl(&["delete", "pod", "slow", "--timeout", "20s"]));
    eventually("nobody holds anything any more", || {
        stored(&engine, "leases").is_empty() && stored(&engine, "tmp").is_empty()
    });
    stdout(&engine.asb(&["image", "prune"]));
    assert!(stored(&engine, "downloads").is_empty() && stored(&engine, "layers").is_empty());
    engine.stop();
}

#[test]
fn engine_that_is_killed_while_it_pulls_goes_on_after_its_restart() {
    let mut engine = Engine::start();
    let registry = Registry::start(Access::Everybody);
    registry.push("app:1", &image(json!({"Cmd": ["/bin/sleep", "1000"]})));
    registry.faults().cut = Some((100_000, 1_000_000));
    let spec = json!({"containers": [{"name": "main", "image": registry.name("app:1")}]});
    stdout(&engine.kubectl_apply(&pod("patient", &spec)));
    eventually("some of the layer is here", || {
        registry.requests().iter().any(|it| it.ends_with("bytes=100000-"))
    });
    engine.kill();
    registry.faults().cut = None;
    engine.restart();
    eventually("the Pod runs", || status(&engine, "patient")["phase"] == "Running");
    assert!(
        registry.requests().iter().any(|it| it.contains("bytes=")),
        "it went on where the dead one ended"
    );
    for what in ["tmp", "leases", "downloads"] {
        eventually("nothing of the dead engine is left", || stored(&engine, what).is_empty());
    }
    stdout(&engine.kubectl(&["delete", "pod", "patient", "--grace-period", "0", "--force"]));
    engine.stop();
}

#[test]
fn image_from_a_directory_is_listed_run_and_removed() {
    let engine = Engine::start();
    let root = tempfile::tempdir().unwrap();
    root_directory(root.path());
    let path = root.path().display().to_string();
    let built = engine.asb(&[
        "image",
        "build-from-dir",
        &path,
        "app:1",
        "--env",
        "A=b",
        "--cmd",
        "/bin/sleep",
        "--cmd",
        "1000",
    ]);
    assert_eq!(stdout(&built), "app:1\n", "only the name is on stdout");
    let rows: Value = serde_json::from_str(&stdout(&engine.asb(&["image", "ls", "--json"]))).unwrap();
    assert_eq!((&rows[0]["name"], &rows[0]["layers"]), (&json!("app:1"), &json!(1)));
    assert!(stdout(&engine.asb(&["image", "ls"])).contains(" MB"), "sizes are for people");

    let run = engine.asb(&["run", "app:1", "--", "/bin/sh", "-c", "echo $A; ls /; exit 3"]);
    assert_eq!(run.status.code(), Some(3), "{}", text(&run));
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(said.starts_with("b\n") && said.contains("srv\n") && !said.contains("usr\n"), "{said}");
    // Without a command its own runs.
    stdout(&engine.asb(&["run", "--detach", "--name", "web", "app:1"]));
    let main = stdout(&engine.asb(&["exec", "web", "--", "/bin/cat", "/proc/1/cmdline"]));
    assert_eq!(main.split('\0').collect::<Vec<_>>(), ["/bin/sleep", "1000", ""]);
    let refused = engine.asb(&["image", "rm", "app:1"]);
    assert!(
        text(&refused).contains("used by web") && text(&refused).contains("hint: "),
        "{}",
        text(&refused)
    );
    stdout(&engine.asb(&["rm", "web"]));
    assert_eq!(stdout(&engine.asb(&["image", "rm", "app:1"])), "app:1\n");
    assert!(text(&engine.asb(&["image", "ls"])).contains("no images but `host`"));
    let again = engine.asb(&["run", "app:1", "--", "true"]);
    assert!(text(&again).contains("no image `app:1`") && text(&again).contains("hint: "), "{}", text(&again));
    engine.stop();
}

#[test]
fn asb_pulls_with_a_login_from_a_file_and_a_default_registry() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start(Access::Basic("me:secret".into()));
    registry.push("team/app:1", &image(json!({})));
    let login = base64::engine::general_purpose::STANDARD.encode("me:secret");
    let auth = dir.path().join("auth.json");
    std::fs::write(&auth, json!({"auths": {registry.address.to_string(): {"auth": login}}}).to_string())
        .unwrap();
    let data = dir.path().join("data");
    let asb = |args: &[&str]| asb_in(&data, args).env("HOME", "/nonexistent").output().unwrap();
    let denied = asb(&["image", "pull", &registry.name("team/app:1")]);
    assert!(!denied.status.success() && text(&denied).contains("imagePullSecrets"), "{}", text(&denied));
    let default = format!("{}/team", registry.address);
    let auth = auth.display().to_string();
    let pulled = asb(&["image", "pull", "app:1", "--default-registry", &default, "--auth-file", &auth]);
    assert_eq!(stdout(&pulled), format!("{}\n", registry.name("team/app:1")), "no engine was needed");
    assert!(text(&pulled).contains("layer ") && text(&pulled).contains(": done"), "{}", text(&pulled));
    assert!(!text(&pulled).contains("secret"));
    let short = asb(&["image", "pull", "app:2"]);
    assert!(
        text(&short).contains("has no registry") && text(&short).contains("--default-registry"),
        "{}",
        text(&short)
    );
    stdout(&asb(&["image", "rm", &registry.name("team/app:1")]));
}

#[test]
fn import_that_is_killed_leaves_only_what_the_next_command_removes() {
    let dir = tempfile::tempdir().unwrap();
    let built = image(json!({}));
    let tar = built
        .layout(Some("app:1"))
        .iter()
        .fold(asb_testing::TarBuilder::default(), |tar, (path, bytes)| tar.file(path, bytes));
    let tar = tar.finish();
    let mut import = asb_in(dir.path(), &["image", "import", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = import.stdin.take().unwrap();
    stdin.write_all(&tar[..tar.len() / 2]).unwrap();
    let images = dir.path().join("images");
    let count = |name: &str| std::fs::read_dir(images.join(name)).map_or(0, Iterator::count);
    eventually("it has begun", || count("tmp") == 1 && count("leases") == 1);
    import.kill().unwrap();
    import.wait().unwrap();
    assert_eq!((count("tmp"), count("layers"), count("names")), (1, 0, 0));
    assert!(asb_in(dir.path(), &["image", "ls"]).status().unwrap().success());
    assert_eq!((count("tmp"), count("leases")), (0, 0));
    // The whole archive through the same pipe works.
    let mut import = asb_in(dir.path(), &["image", "import", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    import.stdin.take().unwrap().write_all(&tar).unwrap();
    assert_eq!(stdout(&import.wait_with_output().unwrap()), "app:1\n");
}
