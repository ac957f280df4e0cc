// Command e2e runs Kubernetes' own tests of networks and of DRA against the cluster of a kubeconfig. It takes the flags of Kubernetes'
// e2e.test.
//
// e2e.test itself has the tests of all parts of Kubernetes, and takes several times longer to build.
package main

import (
	"flag"
	"os"
	"testing"

	"k8s.io/kubernetes/test/e2e" // with what is set up before all specs, and specs of several parts
	_ "k8s.io/kubernetes/test/e2e/dra"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init" // what is logged of a spec that failed
	_ "k8s.io/kubernetes/test/e2e/framework/metrics/init"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	_ "k8s.io/kubernetes/test/e2e/network"
	manifests "k8s.io/kubernetes/test/e2e/testing-manifests"
	_ "k8s.io/kubernetes/test/utils/ktesting/format" // of objects in failures
)

func main() {
	testing.Init()
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	testfiles.AddFileSource(manifests.GetE2ETestingManifestsFS())
	framework.AfterReadingAllFlags(&framework.TestContext)

	var t testing.T
	e2e.RunE2ETests(&t)
	if t.Failed() {
		os.Exit(1)
	}
}
