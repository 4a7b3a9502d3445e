//! Wrong input gets an error that names the field and says what to do, and leaves nothing behind.

use crate::engine::{Engine, eventually, text};

fn manifest(name: &str, spec: &str) -> String {
    format!("apiVersion: agents.x-k8s.io/v1beta1\nkind: Sandbox\nmetadata: {{name: {name}}}\nspec: {spec}\n")
}

#[test]
fn wrong_manifests_are_refused_by_field() {
    let engine = Engine::start();
    let container = "{containers: [{name: main, image: host}]}";
    let long = "x".repeat(64);
    let cases = [
        (manifest("a", &format!("{{service: maybe, podTemplate: {{spec: {container}}}}}")), "spec.service"),
        (
            manifest("a", &format!("{{operatingMode: Off, podTemplate: {{spec: {container}}}}}")),
            "spec.operatingMode",
        ),
        (
            manifest("a", "{podTemplate: {spec: {containers: [{name: main, image: 7}]}}}"),
            "containers[0].image",
        ),
        (manifest("a", "{podTemplate: {spec: {}}}"), "spec.podTemplate.spec.containers"),
        (
            manifest("a", &format!("{{podTemplte: {{}}, podTemplate: {{spec: {container}}}}}")),
            "spec.podTemplte",
        ),
        (manifest(&long, &format!("{{podTemplate: {{spec: {container}}}}}")), "metadata.name"),
        (manifest("UPPER", &format!("{{podTemplate: {{spec: {container}}}}}")), "metadata.name"),
    ];
    for (manifest, field) in cases {
        let refused = engine.kubectl_apply(&manifest);
        assert!(!refused.status.success(), "must be refused:\n{manifest}");
        assert!(text(&refused).contains(field), "{} must name {field}", text(&refused));
    }
    let listed = text(&engine.kubectl(&["get", "sandboxes"]));
    assert!(listed.contains("No resources found"), "{listed}");
    engine.stop();
}

#[test]
fn name_that_is_too_long_says_how_long_it_may_be() {
    let engine = Engine::start();
    let refused = engine.asb(&["run", "--name", &"x".repeat(64), "--", "true"]);
    assert!(!refused.status.success());
    assert!(text(&refused).contains("metadata.name") && text(&refused).contains("63"), "{}", text(&refused));
    engine.stop();
}

#[test]
fn unknown_image_is_named_with_those_that_exist() {
    let engine = Engine::start();
    let run = engine.asb(&["run", "no/such:image", "--", "true"]);
    assert!(!run.status.success());
    let said = text(&run);
    assert!(said.contains("no/such:image") && said.contains("use one of: host"), "{said}");
    assert!(text(&engine.asb(&["ps"])).contains("no sandboxes"), "a failed run leaves no sandbox");

    let spec = "{podTemplate: {spec: {containers: [{name: main, image: no/such:image}]}}}";
    let applied = engine.kubectl_apply(&manifest("lost", spec));
    assert!(applied.status.success(), "{}", text(&applied));
    eventually("kubectl describe tells the story", || {
        let told = text(&engine.kubectl(&["describe", "pod", "lost"]));
        told.contains("ErrImagePull") && told.contains("use one of: host")
    });
    let get = text(&engine.kubectl(&["get", "pod", "lost"]));
    assert!(get.contains("ErrImagePull"), "{get}");
    engine.stop();
}

#[test]
fn what_the_node_cannot_do_is_refused_and_never_done_half() {
    let engine = Engine::start();
    let cases = [
        ("host-net", "{hostNetwork: true, containers: [{name: main, image: host}]}", "spec.hostNetwork"),
        (
            "other-runtime",
            "{runtimeClassName: kata, containers: [{name: main, image: host}]}",
            "spec.runtimeClassName",
        ),
        (
            "privileged",
            "{containers: [{name: main, image: host, securityContext: {privileged: true}}]}",
            "privileged",
        ),
    ];
    for (name, spec, field) in cases {
        let applied = engine.kubectl_apply(&manifest(name, &format!("{{podTemplate: {{spec: {spec}}}}}")));
        assert!(applied.status.success(), "{}", text(&applied));
        eventually("the Pod says which field", || {
            let pod = text(&engine.kubectl(&[
                "get",
                "pod",
                name,
                "-o",
                "jsonpath={.status.phase} {.status.message}",
            ]));
            pod.starts_with("Failed") && pod.contains(field)
        });
    }
    engine.stop();
}

#[test]
fn sandbox_or_command_that_was_not_named_right_is_told_with_a_hint() {
    let engine = Engine::start();
    let nowhere = engine.asb(&["exec", "nobody", "--", "true"]);
    assert!(
        text(&nowhere).contains("no sandbox `nobody`") && text(&nowhere).contains("hint: "),
        "{}",
        text(&nowhere)
    );
    let empty = engine.asb(&["run"]);
    assert!(!empty.status.success() && text(&empty).contains("hint: "), "{}", text(&empty));
    engine.stop();
}

#[test]
fn program_that_cannot_be_run_is_told_as_a_shell_tells_it() {
    let engine = Engine::start();
    assert!(engine.asb(&["run", "--detach", "--name", "box"]).status.success());
    assert!(engine.asb(&["exec", "box", "--", "sh", "-c", "echo > /tmp/text"]).status.success());
    for (command, code, message) in [
        ("nosuchprogram", 127, "error: no such file on PATH: `nosuchprogram`\n"),
        ("/no/such/program", 127, "error: no such file: `/no/such/program`\n"),
        ("/etc/hosts", 126, "error: could not execute `/etc/hosts`\n"),
        ("/tmp", 126, "error: could not execute `/tmp`\n"),
    ] {
        for line in [
            &["run", "--", command, "x"][..],
            &["exec", "box", "--", command],
            &["exec", "-t", "box", "--", command],
        ] {
            let output = engine.asb(line);
            assert_eq!((text(&output).as_str(), output.status.code()), (message, Some(code)), "{line:?}");
        }
        let kubectl = engine.kubectl(&["exec", "box", "--", command]);
        assert!(text(&kubectl).contains(command), "{}", text(&kubectl));
    }
    let missing = engine.asb(&["run", "--runtime", "crun", "--", "nosuchprogram"]);
    assert_eq!((text(&missing).contains("nosuchprogram"), missing.status.code()), (true, Some(127)));
    let own = engine.asb(&["exec", "box", "--", "sh", "-c", "exit 127"]);
    assert_eq!((text(&own).as_str(), own.status.code()), ("", Some(127)), "what a program says itself stays");
    engine.stop();
}
