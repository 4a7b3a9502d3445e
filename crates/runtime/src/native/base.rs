//! What the root of a slot is made from ahead, and for which images slots are parked.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use asb_supervisor::launch::Image;

use crate::RootFs;

/// As many starts in a row find a slot before there is time to make more.
const PARKED: usize = 4;

/// An image as it was when a root was made from it.
///
/// One that is removed and pulled again has the same paths, but is not the same: whoever has mounted the old one sees nothing.
/// While it is mounted nobody else gets its inode number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    pub image: Image,
    /// Device and inode of each layer.
    layers: Vec<(u64, u64)>,
}

impl Base {
    /// `None` if it is not there: a start will say so better. `programs` is the layer that every root has besides.
    pub fn of(root: &RootFs, programs: &Path) -> Option<Self> {
        let identity =
            |path: &std::path::PathBuf| path.metadata().ok().map(|layer| (layer.dev(), layer.ino()));
        let layers = root.layers.iter().map(identity).collect::<Option<_>>()?;
        Some(Self { image: image(root, [programs]), layers })
    }
}

/// What a root is made from. No layer of an image takes the place of our programs.
pub fn image<'a>(root: &RootFs, programs: impl IntoIterator<Item = &'a Path>) -> Image {
    let layers = programs.into_iter().map(Path::to_owned).chain(root.layers.iter().cloned()).collect();
    Image { layers, host_dirs: root.host_dirs.clone() }
}

/// Which of the slots that are parked to take, and which one to make room with. The second is to be removed first.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Choice {
    pub take: Option<usize>,
    pub discard: Option<usize>,
}

/// One that was made for this image, else one that fits any. An image for which there was none takes the place of another.
pub fn choose(parked: &[Option<&Base>], wanted: Option<&Base>) -> Choice {
    let exact = wanted.and_then(|_| parked.iter().position(|base| *base == wanted));
    if exact.is_some() {
        return Choice { take: exact, discard: None };
    }
    let discard = wanted.and_then(|_| parked.iter().position(Option::is_some));
    // Counted after the other is gone.
    let fits_any = parked.iter().position(Option::is_none);
    let take = fits_any.map(|at| at - usize::from(discard.is_some_and(|discard| discard < at)));
    Choice { take, discard }
}

/// What to park a slot for next: `None` when there are enough, `Some(None)` for one that fits any image.
///
/// One is kept for whatever comes.
pub fn next<'a>(parked: &[Option<&Base>], expected: Option<&'a Base>) -> Option<Option<&'a Base>> {
    let for_any = parked.iter().filter(|base| base.is_none()).count();
    match expected {
        _ if parked.len() >= PARKED => None,
        Some(expected) if for_any > 0 || parked.is_empty() => Some(Some(expected)),
        _ => Some(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(name: &str, inode: u64) -> Base {
        let image = Image { layers: vec![name.into()], host_dirs: Vec::new() };
        Base { image, layers: vec![(1, inode)] }
    }

    #[test]
    fn a_slot_made_for_the_image_is_taken_before_one_for_any() {
        let (a, b) = (base("a", 1), base("b", 2));
        let parked = [None, Some(&b), Some(&a)];
        assert_eq!(choose(&parked, Some(&a)), Choice { take: Some(2), discard: None });
        assert_eq!(choose(&parked, None), Choice { take: Some(0), discard: None });
    }

    #[test]
    fn an_image_without_a_slot_takes_the_place_of_another() {
        let (a, b) = (base("a", 1), base("b", 2));
        assert_eq!(choose(&[Some(&a), None, Some(&a)], Some(&b)), Choice { take: Some(0), discard: Some(0) });
        assert_eq!(choose(&[None, Some(&a)], Some(&b)), Choice { take: Some(0), discard: Some(1) });
        assert_eq!(choose(&[Some(&a)], Some(&b)), Choice { take: None, discard: Some(0) });
        assert_eq!(choose(&[Some(&a)], None), Choice::default());
    }

    #[test]
    fn an_image_that_was_removed_and_came_back_is_another() {
        let (old, new) = (base("a", 1), base("a", 2));
        assert_eq!(choose(&[Some(&old)], Some(&new)), Choice { take: None, discard: Some(0) });
    }

    #[test]
    fn one_slot_is_parked_for_any_image_and_the_rest_for_the_expected_one() {
        let a = base("a", 1);
        let mut parked = Vec::new();
        while let Some(base) = next(&parked, Some(&a)) {
            parked.push(base);
        }
        assert_eq!(parked, [Some(&a), None, Some(&a), Some(&a)]);
        assert_eq!(next(&[Some(&a), Some(&a), Some(&a)], Some(&a)), Some(None));
        assert_eq!(next(&[], None), Some(None));
        assert_eq!(next(&[None; PARKED], None), None);
    }
}
