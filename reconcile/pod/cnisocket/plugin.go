package cnisocket

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

// How long the agent may take: the kubelet waits four minutes for a pod's sandbox.
const (
	patience       = 2 * time.Minute
	statusPatience = 5 * time.Second
)

// Main is the plugin: the program that a container runtime starts for each call.
func Main() {
	skel.PluginMainFuncs(skel.CNIFuncs{
		Add:    add,
		Check:  func(a *skel.CmdArgs) error { return only(ask(Check, a, patience)) },
		Del:    del,
		GC:     func(a *skel.CmdArgs) error { return only(ask(GC, a, patience)) },
		Status: func(a *skel.CmdArgs) error { return only(ask(Status, a, statusPatience)) },
	}, version.All, "CNI plugin plumbline: asks the agent of plumbline on this node")
}

func only(_ *Reply, err error) error { return err }

// notSuccess rewords what containerd takes for the success of a DEL: "not found" in an error, and
// without a namespace, as after a reboot, also the kernel's words for ENOENT, which a socket has that the
// agent has not created yet (github.com/containerd/go-cni, Remove). The call would not be repeated.
var notSuccess = strings.NewReplacer("no such file or directory", "it does not exist", "not found", "unknown")

func del(a *skel.CmdArgs) error {
	_, err := ask(Del, a, patience)
	said, ok := errors.AsType[*types.Error](err)
	if !ok {
		return err
	}
	return types.NewError(said.Code, notSuccess.Replace(said.Msg), notSuccess.Replace(said.Details))
}

func add(a *skel.CmdArgs) error {
	reply, err := ask(Add, a, patience)
	if err != nil {
		return err
	}
	result, err := types100.NewResult(reply.Result)
	if err != nil {
		return fmt.Errorf("result of the agent: %w", err)
	}
	var conf types.PluginConf
	if err := json.Unmarshal(a.StdinData, &conf); err != nil {
		return types.NewError(types.ErrDecodingFailure, "configuration of the network", err.Error())
	}
	return types.PrintResult(result, conf.CNIVersion)
}

// ask passes a call to the agent. An error is one of CNI.
func ask(command Command, a *skel.CmdArgs, within time.Duration) (*Reply, error) {
	var conf struct {
		Socket string `json:"socket"`
	}
	if err := json.Unmarshal(a.StdinData, &conf); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "configuration of the network", err.Error())
	}
	conf.Socket = cmp.Or(conf.Socket, DefaultPath)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("it does not answer within %s", within))
	defer cancel()
	reply, err := Call(ctx, conf.Socket, Request{
		Command: command, Container: a.ContainerID, Netns: a.Netns, IfName: a.IfName, Args: a.Args, Config: a.StdinData,
	})
	switch {
	case err != nil && errors.Is(err, syscall.EACCES):
		return nil, types.NewError(types.ErrInternal, "the socket of plumbline's agent is for root only", err.Error())
	case err != nil && command == Status:
		return nil, types.NewError(ErrPluginNotAvailable, "the agent of plumbline does not run on this node, or is starting", err.Error())
	case err != nil:
		return nil, types.NewError(types.ErrTryAgainLater, "the agent of plumbline does not run on this node, or is starting", err.Error())
	case reply.Error != nil:
		return nil, reply.Error
	}
	return reply, nil
}
