//! How a kind becomes a `kube::Resource`: one macro, so that the four kinds cannot differ by accident.

/// Defines the object struct of a namespaced kind, `kube::Resource` for it, and its (de)serialisation.
macro_rules! kind {
    ($(#[$doc:meta])* $object:ident, $kind:literal, $plural:literal, $group:expr, $spec:ty $(, status: $status:ty)?) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $object {
            #[serde(flatten)]
            pub types: crate::kind::Types<Self>,
            pub metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
            pub spec: $spec,
            $(#[serde(default, skip_serializing_if = "Option::is_none")]
            pub status: Option<$status>,)?
        }

        impl $object {
            /// An object of this kind that has a name and a spec, and nothing else yet.
            pub fn new(name: &str, spec: $spec) -> Self {
                let mut object = Self { spec, ..Default::default() };
                object.metadata.name = Some(name.to_owned());
                object
            }
        }

        impl kube::Resource for $object {
            type DynamicType = ();
            type Scope = kube::core::NamespaceResourceScope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                $kind.into()
            }
            fn group((): &()) -> std::borrow::Cow<'_, str> {
                $group.into()
            }
            fn version((): &()) -> std::borrow::Cow<'_, str> {
                crate::VERSION.into()
            }
            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                $plural.into()
            }
            fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

pub(crate) use kind;

/// `apiVersion` and `kind` of an object: always written, and ignored when read.
pub struct Types<K>(std::marker::PhantomData<K>);

impl<K> Default for Types<K> {
    fn default() -> Self {
        Self(std::marker::PhantomData)
    }
}

impl<K> Clone for Types<K> {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl<K> PartialEq for Types<K> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<K> std::fmt::Debug for Types<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Types")
    }
}

impl<K: kube::Resource<DynamicType = ()>> serde::Serialize for Types<K> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("apiVersion", &K::api_version(&()))?;
        map.serialize_entry("kind", &K::kind(&()))?;
        map.end()
    }
}

impl<'de, K> serde::Deserialize<'de> for Types<K> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Self::default())
    }
}
