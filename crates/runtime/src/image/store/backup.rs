//! Images as a backup has them: an archive per layer, and the records.

use std::collections::HashMap;
use std::io::{self, Read, Write};

use super::{Lease, Record, Store};
use crate::image::Error;
use crate::image::digest::Digest;
use crate::image::error::storage;
use crate::tree;

impl Store {
    /// Writes a layer as an archive, with its deletions. The caller holds a lease on it.
    pub fn export_layer(&self, id: &Digest, out: impl Write) -> io::Result<()> {
        tree::pack_layer(&self.layer(id), out)
    }

    /// Names an image again, after its layers were read from the archives that `open` finds by the hex of their digest.
    ///
    /// An archive that was written from an unpacked layer is not the one that the layer came in, so its digest is
    /// another; what is in it is the same. `known` remembers the layers that several images share.
    pub fn restore<R: Read>(
        &self,
        record: &Record,
        known: &mut HashMap<Digest, Digest>,
        open: impl Fn(&str) -> io::Result<R>,
    ) -> Result<(), Error> {
        let lease = Lease::new(self, &known.values().cloned().collect::<Vec<_>>())?;
        let mut layers = Vec::new();
        for id in &record.layers {
            if let Some(restored) = known.get(id) {
                layers.push(restored.clone());
                continue;
            }
            let archive = open(&id.hex()).map_err(storage("open", self.directory()))?;
            let restored = self.add_layer(&lease, archive, None, None, &self.budget()?)?;
            known.insert(id.clone(), restored.clone());
            layers.push(restored);
        }
        self.name(&lease, &Record { layers, ..record.clone() })
    }
}
