//! The images of the stories, made of this machine's busybox: the same bytes for containerd and for `asb image import`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::{ImageBuilder, TarBuilder};

/// The image of containers that name none: a shell, run by root.
pub const PLAIN: &str = "pods:plain";

/// Programs of busybox that scripts find in the `PATH`.
const PROGRAMS: [&str; 34] = [
    "awk", "cat", "chmod", "cut", "date", "dd", "df", "echo", "env", "false", "grep", "head", "hostname",
    "httpd", "id", "kill", "ln", "ls", "mkdir", "nc", "printf", "ps", "pwd", "readlink", "rm", "sed", "sh",
    "sleep", "sort", "stat", "test", "touch", "tr", "true",
];

/// Writes an archive for each image into the folder.
pub fn write(folder: &Path) -> Vec<PathBuf> {
    let layer = layer();
    let image = |(tag, config): (&str, Value)| {
        let built = ImageBuilder::default().tar(&layer).config(config).build();
        let path = folder.join(format!("{tag}.tar"));
        let archive = built.docker_save(&format!("pods:{tag}"), std::slice::from_ref(&layer));
        std::fs::write(&path, archive).expect("the folder can be written");
        path
    };
    let trap = "trap 'exit 9' USR1; touch /tmp/up; while :; do sleep 0.05; done";
    let configs = [
        ("plain", json!({"Cmd": ["sleep", "1000"]})),
        (
            "entry",
            json!({
                "Entrypoint": ["sh", "-c", "echo \"$0 $* $GREETING $PWD\" >/dev/termination-log"], "Cmd": ["one", "two"],
                "Env": ["PATH=/bin", "GREETING=hello"], "WorkingDir": "/srv",
            }),
        ),
        ("nothing", json!({})),
        ("broken", json!({"Entrypoint": ["/bin/none"]})),
        ("signal", json!({"Cmd": ["sh", "-c", trap], "StopSignal": "SIGUSR1"})),
        ("number", json!({"Cmd": ["sleep", "1000"], "User": "1000:1000"})),
        ("named", json!({"Cmd": ["sleep", "1000"], "User": "web"})),
    ];
    configs.into_iter().map(image).collect()
}

fn layer() -> Vec<u8> {
    let busybox = std::fs::read("/bin/busybox").expect("these tests need busybox-static");
    let passwd = "root:x:0:0::/root:/bin/sh\nweb:x:1000:1000::/srv:/bin/sh\n";
    let mut tar = TarBuilder::default();
    for (directory, mode) in [
        ("bin/", 0o755),
        ("etc/", 0o755),
        ("tmp/", 0o1777),
        ("srv/", 0o755),
        ("root/", 0o700),
        ("proc/", 0o755),
    ] {
        tar = tar.directory(directory, mode);
    }
    tar = tar.entry(tar::EntryType::Regular, "bin/busybox", 0o755, "", &busybox);
    tar = tar.file("etc/passwd", passwd.as_bytes()).file("etc/group", b"root:x:0:\nweb:x:1000:\n");
    tar = tar.file("srv/text", b"not a program\n");
    for program in PROGRAMS {
        tar = tar.entry(tar::EntryType::Symlink, &format!("bin/{program}"), 0o777, "busybox", b"");
    }
    tar.finish()
}
