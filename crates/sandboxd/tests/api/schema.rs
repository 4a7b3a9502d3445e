//! The descriptors that reflection serves are those of the schema.

use std::path::Path;

const FILES: [(&str, &str); 3] = [
    ("process/v1/process.proto", "process.v1.bin"),
    ("sandboxd/v1/process.proto", "sandboxd.v1.bin"),
    ("google/protobuf/empty.proto", "empty.bin"),
];

/// After a change of the schema, `ASB_WRITE_DESCRIPTORS=1 cargo test -p asb-sandboxd --test api schema` writes them.
#[test]
fn the_descriptors_in_the_repository_are_those_of_the_schema() {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let mut compiler = protox::Compiler::new([&proto]).unwrap();
    compiler.include_imports(true).include_source_info(false);
    compiler.open_files(["process/v1/process.proto", "sandboxd/v1/process.proto"]).unwrap();
    let set = compiler.file_descriptor_set();
    for (name, file) in FILES {
        let descriptor = set.file.iter().find(|descriptor| descriptor.name() == name).unwrap();
        let wanted = prost::Message::encode_to_vec(descriptor);
        let path = proto.join(file);
        if std::env::var_os("ASB_WRITE_DESCRIPTORS").is_some() {
            std::fs::write(&path, &wanted).unwrap();
        }
        assert!(
            std::fs::read(&path).unwrap() == wanted,
            "{file} is out of date; see the comment of this test"
        );
    }
}
