// Package image writes container images as archives that containerd imports,
// without a daemon, a registry or a base: a layer of some files and what to run.
//
// The way in is [Write]. The same content gives the same bytes, so that an
// archive's hash shows whether anything changed. It refuses to know compression,
// several layers and foreign platforms: an image here is a few static programs.
package image
