package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// kubeFlags are the flags that name a cluster, as kubectl has them.
type kubeFlags struct {
	kubeconfig, context string
	namespace, as       string // not of each command
}

// flags adds those of each command.
func (k *kubeFlags) flags(cmd *cobra.Command, f *pflag.FlagSet) {
	f.StringVar(&k.kubeconfig, "kubeconfig", "", "kubeconfig `file`; default: as kubectl")
	f.StringVar(&k.context, "context", "", "kubeconfig context `name`; default: the current one")
	_ = cmd.RegisterFlagCompletionFunc("context", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		raw, _ := k.client().RawConfig()
		return slices.Collect(maps.Keys(raw.Contexts)), cobra.ShellCompDirectiveNoFileComp
	})
}

func (k *kubeFlags) client() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = k.kubeconfig
	overrides := clientcmd.ConfigOverrides{CurrentContext: k.context}
	overrides.Context.Namespace, overrides.AuthInfo.Impersonate = k.namespace, k.as
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &overrides)
}

// config returns what the flags, the variable KUBECONFIG and the kubeconfig name, with the namespace.
func (k *kubeFlags) config() (*rest.Config, string, error) {
	config, err := k.client().ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, "", errors.New("--kubeconfig: names no cluster: name a kubeconfig file, or set the variable KUBECONFIG")
	}
	if err != nil {
		return nil, "", fmt.Errorf("--kubeconfig: %w", err)
	}
	namespace, _, err := k.client().Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("--kubeconfig: %w", err)
	}
	return config, namespace, nil
}
